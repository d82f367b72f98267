#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The README's code is a program of this tree, and what it says that it prints is what it prints.

    check_readme.py README SOURCE PROGRAM
"""

import re
import subprocess
import sys
from pathlib import Path


def main():
    readme = Path(sys.argv[1]).read_text()
    code, output = re.search(r"```cpp\n(.*?)```\n+.*?```text\n(.*?)```", readme, re.DOTALL).groups()
    source = Path(sys.argv[2]).read_text()
    # The README leaves out the licence line.
    if code not in source or not source.removesuffix(code).strip().startswith("// SPDX"):
        print("FAILED the README's first program is not", sys.argv[2])
        return 1
    printed = subprocess.run([sys.argv[3]], capture_output=True, text=True, check=True).stdout
    if printed != output:
        print("FAILED the README says\n" + output + "but the program prints\n" + printed)
        return 1
    print("ok     code and output of the README")
    return 0


if __name__ == "__main__":
    sys.exit(main())
