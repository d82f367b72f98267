// SPDX-License-Identifier: Apache-2.0
#include "gguf.hpp"

#include <sys/stat.h>

#include <cstdint>
#include <filesystem>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include "support/gguf_samples.hpp"
#include "tokenizer.hpp"

using engine::TensorType;
using namespace test_support;

TEST_CASE("a GGUF file of version 2 or 3 gives back its metadata in every type") {
  for (const std::uint32_t version : {2U, 3U}) {
    CAPTURE(version);
    const Bytes bytes = sample(version).bytes();
    const Gguf file{std::span<const std::byte>(bytes)};
    CHECK(file.string("general.architecture") == "llama");
    CHECK(file.integer("a.u8") == 200);
    CHECK(file.integer("a.i8") == -100);
    CHECK(file.integer("a.u16") == 60000);
    CHECK(file.integer("a.i16") == -30000);
    CHECK(file.integer("a.u32") == 4000000000);
    CHECK(file.integer("a.i32") == -2000000000);
    CHECK(file.integer("a.u64") == 9000000000);
    CHECK(file.integer("a.i64") == -9000000000);
    CHECK(file.number("a.i64") == -9e9);
    CHECK(file.number("a.f32") == 0.5);
    CHECK(file.number("a.f64") == 0.25);
    CHECK(file.boolean("a.true") == true);
    CHECK(file.boolean("a.false") == false);
    CHECK(file.integers("a.integers") == std::vector<std::int64_t>{1, -2, 3});
    CHECK(file.floats("a.integers") == std::vector<float>{1, -2, 3});
    CHECK(file.floats("a.floats") == std::vector<float>{1.5F, -2.5F});
    CHECK(file.strings("tokenizer.ggml.merges") == std::vector<std::string_view>{"a b"});
    CHECK(file.strings("a.none").empty());
    CHECK(file.has("a.none"));
    CHECK(file.is_array("a.none"));
    CHECK_FALSE(file.is_array("a.u8"));
  }
}

TEST_CASE("metadata that is absent is nothing, and metadata of another type is an error that names key and type") {
  const Bytes bytes = sample().bytes();
  const Gguf file{std::span<const std::byte>(bytes)};
  CHECK_FALSE(file.has("b"));
  CHECK_FALSE(file.integer("b"));
  CHECK_FALSE(file.number("b"));
  CHECK_FALSE(file.boolean("b"));
  CHECK_FALSE(file.string("b"));
  CHECK(file.strings("b").empty());
  CHECK(file.integers("b").empty());
  CHECK(file.floats("b").empty());
  CHECK_THROWS_WITH_AS((void)file.integer("a.f32"), "GGUF data: metadata 'a.f32' is of type float32, not an integer",
                       FileError);
  CHECK_THROWS_WITH_AS((void)file.integer("a.integers"),
                       "GGUF data: metadata 'a.integers' is an array of int16, not a single value", FileError);
  CHECK_THROWS_WITH_AS((void)file.integers("a.u8"), "GGUF data: metadata 'a.u8' is of type uint8, not an array", FileError);
  CHECK_THROWS_AS((void)file.integer("a.true"), FileError);
  CHECK_THROWS_AS((void)file.number("general.architecture"), FileError);
  CHECK_THROWS_AS((void)file.boolean("a.u8"), FileError);
  CHECK_THROWS_AS((void)file.string("a.u8"), FileError);
  CHECK_THROWS_AS((void)file.strings("a.integers"), FileError);
  CHECK_THROWS_AS((void)file.integers("a.floats"), FileError);
  CHECK_THROWS_WITH_AS((void)file.integer("a.u64.large"),
                       "GGUF data: metadata 'a.u64.large' is out of range: 18446744073709551615", FileError);
}

TEST_CASE("the tensors of a file are found by name with shape, type and bytes") {
  const Bytes bytes = sample().bytes();
  const Gguf file{std::span<const std::byte>(bytes)};
  REQUIRE(file.tensors().size() == 3);
  CHECK(file.tensors()[0].name == "plain");
  const engine::Tensor& plain = file.tensor("plain");
  CHECK(plain.cols == 3);
  CHECK(plain.rows == 2);
  CHECK(plain.type == TensorType::F32);
  CHECK(plain.row_bytes() == 12);
  CHECK(plain.data.size() == 24);
  CHECK(plain.data[23] == std::byte{23});
  const engine::Tensor& packed = file.tensor("packed");
  CHECK(packed.cols == 64);
  CHECK(packed.rows == 6);
  CHECK(packed.row_bytes() == 36);
  CHECK(packed.data.size() == 216);
  CHECK(packed.data[1] == std::byte{1});
  CHECK(file.tensor("vector").rows == 1);
  CHECK(file.find("nothing") == nullptr);
  CHECK_THROWS_WITH_AS((void)file.tensor("nothing"), "GGUF data: has no tensor 'nothing'", FileError);
}

TEST_CASE("every tensor type has the format's block size and name") {
  const auto is = [](TensorType type, const char* text, std::size_t elements, std::size_t size) {
    CHECK(engine::name(type) == text);
    CHECK(engine::block_layout(type).elements == elements);
    CHECK(engine::block_layout(type).bytes == size);
  };
  is(TensorType::F32, "F32", 1, 4);
  is(TensorType::F16, "F16", 1, 2);
  is(TensorType::BF16, "BF16", 1, 2);
  is(TensorType::Q4_0, "Q4_0", 32, 18);
  is(TensorType::Q4_1, "Q4_1", 32, 20);
  is(TensorType::Q5_0, "Q5_0", 32, 22);
  is(TensorType::Q8_0, "Q8_0", 32, 34);
  is(TensorType::Q4_K, "Q4_K", 256, 144);
  is(TensorType::Q6_K, "Q6_K", 256, 210);
  CHECK(engine::name(static_cast<TensorType>(77)) == "unknown");
  CHECK_THROWS_AS((void)engine::block_layout(static_cast<TensorType>(77)), FileError);
}

TEST_CASE("a tensor of an unknown type leaves the file readable and is refused when it is used") {
  GgufWriter writer = sample();
  writer.tensor("odd", 77, {32}, counting(32));
  const Bytes bytes = writer.bytes();
  const Gguf file{std::span<const std::byte>(bytes)};
  CHECK(file.tensors().size() == 4);
  CHECK(file.tensors()[3].data.empty());
  CHECK(file.tensor("plain").cols == 3);
  CHECK_THROWS_WITH_AS((void)file.find("odd"), "GGUF data: tensor 'odd' has type 77, which is not supported", FileError);
  CHECK_THROWS_AS((void)file.tensor("odd"), FileError);
  CHECK(engine::Tokenizer(file).vocab_size() == 4);
}

TEST_CASE("a file's own alignment places its tensors") {
  GgufWriter writer;
  writer.alignment(256).tensor("a", 0, {1}, counting(4)).tensor("b", 0, {2}, counting(8));
  const Bytes bytes = writer.bytes();
  const Gguf file{std::span<const std::byte>(bytes)};
  CHECK(file.tensor("b").data.data() == bytes.data() + writer.data_start() + 256);
  for (const std::uint32_t wrong : {0U, 3U, 48U, 0xFFFFFFFFU}) {
    GgufWriter bad;
    bad.put("general.alignment", wrong);
    CAPTURE(wrong);
    CHECK(contains(failure(bad.bytes()), "not a power of two"));
  }
}

TEST_CASE("a file is read through its path, and its views outlive a move") {
  const TemporaryFile file(sample().bytes());
  Gguf first(file.path());
  const std::string_view architecture = *first.string("general.architecture");
  const std::byte* const data = first.tensor("packed").data.data();
  const Gguf second = std::move(first);
  CHECK(architecture == "llama");
  CHECK(second.tensor("packed").data.data() == data);
  CHECK(*data == std::byte{0});
  CHECK(contains(second.label(), file.path().filename().string()));
}

TEST_CASE("a path that is no file, a folder, an empty file or a pipe is refused in one line that names it") {
  const auto message = [](const std::filesystem::path& path) -> std::string {
    try {
      const Gguf file(path);
      return {};
    } catch (const FileError& error) {
      return error.what();
    }
  };
  CHECK(contains(message("/no/such/file.gguf"), "'/no/such/file.gguf': cannot open: "));
  CHECK(message("/tmp") == "'/tmp': is a folder, not a file");
  const TemporaryFile empty(Bytes{});
  CHECK(message(empty.path()) == "'" + empty.path().string() + "': is empty");
  const std::filesystem::path pipe = empty.path().string() + ".pipe";
  REQUIRE(::mkfifo(pipe.c_str(), 0600) == 0);
  CHECK(contains(message(pipe), "is not a regular file"));
  std::filesystem::remove(pipe);
  const TemporaryFile text(Bytes(100, std::byte{'x'}));
  CHECK(contains(message(text.path()), "is not a GGUF file"));
}

TEST_CASE("pages can be given back and read again") {
  const TemporaryFile file(counting(100000));
  const engine::MappedFile mapped(file.path());
  CHECK(mapped.bytes()[99999] == static_cast<std::byte>(99999 & 0xFF));
  mapped.advise_dont_need(mapped.bytes());
  mapped.advise_dont_need(mapped.bytes().subspan(1, 10));
  CHECK(mapped.bytes()[99999] == static_cast<std::byte>(99999 & 0xFF));
}

TEST_CASE("another magic, version or byte order is refused by name") {
  Bytes bytes = sample().bytes();
  bytes[0] = std::byte{'g'};
  CHECK(failure(bytes) == "GGUF data: is not a GGUF file (it does not start with \"GGUF\")");
  CHECK(failure({}) == "GGUF data: is not a GGUF file (it does not start with \"GGUF\")");
  CHECK(contains(failure(sample(1).bytes()), "version 1;"));
  CHECK(contains(failure(sample(4).bytes()), "version 4;"));
  CHECK(contains(failure(sample(0x03000000).bytes()), "big-endian"));
}

TEST_CASE("metadata of unknown types, without a name or given twice is refused") {
  CHECK(contains(failure(GgufWriter().raw("k", 13, Bytes(8)).bytes()), "metadata 'k' has the unknown type 13"));
  Bytes array;
  append(array, std::uint32_t{99});
  append(array, std::uint64_t{0});
  CHECK(contains(failure(GgufWriter().raw("k", test_support::gguf_array, array).bytes()), "unknown type 99"));
  CHECK(contains(failure(GgufWriter().put("", 1.0F).bytes()), "without a name"));
  CHECK(contains(failure(GgufWriter().put("k", 1.0F).put("k", 1.0F).bytes()), "metadata 'k' twice"));
}

TEST_CASE("arrays of arrays are passed over up to a depth, and refused beyond it") {
  const auto nested = [](int depth) {
    Bytes bytes;
    for (int i = 0; i < depth; ++i) {
      append(bytes, test_support::gguf_array);
      append(bytes, std::uint64_t{1});
    }
    append(bytes, std::uint32_t{4});
    append(bytes, std::uint64_t{1});
    append(bytes, std::uint32_t{7});
    return GgufWriter().raw("nested", test_support::gguf_array, bytes).put("after", std::uint8_t{9}).bytes();
  };
  const Bytes two = nested(1);
  const Gguf file{std::span<const std::byte>(two)};
  CHECK(file.integer("after") == 9);
  CHECK_THROWS_WITH_AS((void)file.integers("nested"), "GGUF data: metadata 'nested' is an array of array, not an integer",
                       FileError);
  CHECK(contains(failure(nested(1000)), "deep"));
}

TEST_CASE("tensors with impossible dimensions, offsets or names are refused by name") {
  const auto with = [](const std::vector<std::uint64_t>& dimensions, std::uint32_t type = 0, std::uint64_t offset = 0) {
    GgufWriter writer;
    writer.tensor("first", 0, {8}, counting(32)).description("bad", type, dimensions, offset);
    return failure(writer.bytes());
  };
  CHECK(with({8}).empty());
  CHECK(contains(with({}), "tensor 'bad' has 0 dimensions"));
  CHECK(contains(with({1, 1, 1, 1, 1}), "tensor 'bad' has 5 dimensions"));
  CHECK(contains(with({0}), "impossible dimension 0"));
  CHECK(contains(with({1, 0}), "impossible dimension 0"));
  CHECK(contains(with({~std::uint64_t{0}}), "impossible dimension"));
  CHECK(contains(with({1, std::uint64_t{1} << 40, std::uint64_t{1} << 40}), "impossible dimension"));
  CHECK(contains(with({std::uint64_t{1} << 62, 4}), "outside the file"));
  CHECK(contains(with({std::uint64_t{1} << 40, std::uint64_t{1} << 40}), "outside the file"));
  CHECK(contains(with({9}), "outside the file"));
  CHECK(contains(with({1}, 0, 32), "outside the file"));
  CHECK(contains(with({1}, 0, ~std::uint64_t{31}), "outside the file"));
  CHECK(contains(with({1}, 0, 4), "not a multiple of 32"));
  CHECK(contains(with({33}, 2), "not a multiple of the 32 in a block of Q4_0"));
  GgufWriter twice;
  twice.tensor("t", 0, {1}, counting(4)).tensor("t", 0, {1}, counting(4));
  CHECK(contains(failure(twice.bytes()), "tensor 't' twice"));
}

TEST_CASE("a message shows names from the file in one short line") {
  GgufWriter writer;
  writer.description(std::string(5000, '\n'), 0, {}, 0);
  const std::string message = failure(writer.bytes());
  CHECK(message.size() < 400);
  CHECK(message.find('\n') == std::string::npos);
}

TEST_CASE("numbers beyond float become infinite") {
  const Bytes bytes = GgufWriter().array("n", std::vector<double>{1e300, -1e300, 1.5}).bytes();
  const Gguf file{std::span<const std::byte>(bytes)};
  const std::vector<float> numbers = file.floats("n");
  CHECK(numbers == std::vector<float>{std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity(), 1.5F});
}
