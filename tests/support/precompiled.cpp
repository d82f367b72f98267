// SPDX-License-Identifier: Apache-2.0
// The file that the tests' common headers are precompiled with.
