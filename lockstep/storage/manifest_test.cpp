// SPDX-License-Identifier: Apache-2.0
#include "lockstep/storage/manifest.h"

#include <cstdint>
#include <functional>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/base/error.h"
#include "lockstep/storage/test_checkpoints.h"

namespace lockstep::storage {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::Pair;
using testing::ThrowsMessage;
using Json = nlohmann::json;

Manifest example() {
  return {
      .sequence = 7,
      .world_size = 2,
      .meta = {{"step", 100}, {"nested", {{"x", 0.1}}}},
      .files = {
          {"model.safetensors", {.bytes = 64, .crc32c = 0xabc, .tensors = {{"w", 1}, {"b", ~0U}}}},
          {"rank_1.json", {.bytes = 0, .crc32c = 0, .tensors = {}}}}};
}

/// The example with a change, and the checksum a forger or a newer version would give it.
std::string changed(const std::function<void(Json&)>& change) {
  Json json = Json::parse(render_manifest("m", example()));
  change(json);
  return with_checksum(json.dump(2) + "\n");
}

void refuses_manifest(const std::string& text, const std::string& why) {
  expect_refused([&] { parse_manifest("the/manifest.json", text); }, "the/manifest.json", why);
}

TEST(Manifest, IsReadBackUnchanged) {
  const Manifest back = parse_manifest("m", render_manifest("m", example()));
  EXPECT_EQ(back.sequence, 7);
  EXPECT_EQ(back.world_size, 2);
  EXPECT_EQ(back.meta, example().meta);
  ASSERT_EQ(back.files.size(), 2U);
  EXPECT_EQ(back.files[0].name, "model.safetensors");
  EXPECT_EQ(back.files[0].summary.bytes, 64U);
  EXPECT_EQ(back.files[0].summary.crc32c, 0xabcU);
  EXPECT_THAT(back.files[0].summary.tensors, ElementsAre(Pair("b", ~0U), Pair("w", 1U)));
  EXPECT_NO_THROW(parse_manifest("m", changed([](Json&) {})));
}

TEST(Manifest, RefusesAnotherVersionAndNamesBoth) {
  refuses_manifest(
      changed([](Json& json) {
        json["version"] = 2;
        json["what version 2 adds"] = 1;
      }),
      "got \"2\", expected 1");
  refuses_manifest(
      changed([](Json& json) { json["version"] = "1"; }), R"(got "\"1\"", expected 1)");
  refuses_manifest(changed([](Json& json) { json.erase("version"); }), "and a version");
  refuses_manifest(changed([](Json& json) { json["format"] = "other"; }), "lockstep-checkpoint");
}

TEST(Manifest, SeesEveryFlippedBitInItself) {
  const std::string good = render_manifest("m", example());
  for (size_t bit = 0; bit < 8 * good.size(); ++bit) {
    std::string bad = good;
    bad[bit / 8] = static_cast<char>(bad[bit / 8] ^ (1 << (bit % 8)));
    EXPECT_THROW(parse_manifest("m", bad), CheckpointError) << "bit " << bit << ": " << bad;
  }
}

TEST(Manifest, SeesEveryTruncationOfItself) {
  const std::string good = render_manifest("m", example());
  for (size_t size = 0; size < good.size(); ++size) {
    EXPECT_THROW(parse_manifest("m", good.substr(0, size)), CheckpointError) << size;
  }
}

TEST(Manifest, RefusesKeysItDoesNotKnowOrMisses) {
  refuses_manifest(changed([](Json& json) { json["zoom"] = 1; }), "world_size, zoom");
  refuses_manifest(changed([](Json& json) { json.erase("meta"); }), "got the keys");
  refuses_manifest(changed([](Json& json) { json["files"][0]["mode"] = 1; }), "mode");
  refuses_manifest(changed([](Json& json) { json["files"][0].erase("tensors"); }), "got the keys");
  refuses_manifest(changed([](Json& json) { json["files"][0] = 3; }), "got the keys");
}

TEST(Manifest, RefusesValuesThatMakeNoSense) {
  refuses_manifest(changed([](Json& json) { json["sequence"] = -1; }), "\"-1\" for sequence");
  refuses_manifest(changed([](Json& json) { json["sequence"] = 1.5; }), "for sequence");
  refuses_manifest(changed([](Json& json) { json["sequence"] = INT64_MAX; }), "for sequence");
  refuses_manifest(
      changed([](Json& json) { json["world_size"] = int64_t{1} << 31; }), "for world_size");
  refuses_manifest(changed([](Json& json) { json["world_size"] = 0; }), "for world_size");
  refuses_manifest(changed([](Json& json) { json["meta"] = Json::array(); }), "an object for meta");
  refuses_manifest(changed([](Json& json) { json["files"] = Json::object(); }), "a list for files");
  refuses_manifest(changed([](Json& json) { json["files"][0]["bytes"] = "64"; }), "for bytes");
  refuses_manifest(
      changed([](Json& json) { json["files"][0]["crc32c"] = "0ABC0000"; }), "8 hex digits");
  refuses_manifest(changed([](Json& json) { json["files"][0]["crc32c"] = "abc"; }), "8 hex digits");
  refuses_manifest(
      changed([](Json& json) { json["files"][0]["tensors"]["w"] = 1; }), "8 hex digits");
  refuses_manifest(
      changed([](Json& json) { json["files"][1] = json["files"][0]; }), "listed twice");
}

TEST(Manifest, AllowsOnlyPlainFileNames) {
  for (const std::string name :
       {"",
        ".",
        "..",
        "../../etc/passwd",
        "/etc/passwd",
        "a/b",
        ".hidden",
        "a..b",
        "a\nb",
        "manifest.json"}) {
    EXPECT_THROW(check_file_name("m", name), CheckpointError) << name;
    refuses_manifest(
        changed([&](Json& json) { json["files"][0]["name"] = name; }), "an invalid file name");
  }
  EXPECT_THROW(check_file_name("m", "\xff"), CheckpointError);
  EXPECT_THROW(check_file_name("m", std::string("a\0b", 3)), CheckpointError);
  EXPECT_THROW(check_file_name("m", std::string(256, 'a')), CheckpointError);
  EXPECT_NO_THROW(check_file_name("m", "model-00001-of-00002.safetensors"));
  EXPECT_NO_THROW(check_file_name("m", "größe b"));
}

TEST(Manifest, IsNotRenderedWithoutAnObjectForMeta) {
  Manifest manifest = example();
  manifest.meta = 3;
  EXPECT_THAT(
      [&] { render_manifest("m", manifest); },
      ThrowsMessage<CheckpointError>(HasSubstr("got meta of type number, expected an object")));
}

TEST(Manifest, IsNeitherWrittenNorReadBeyondItsLimit) {
  Manifest manifest = example();
  manifest.meta["text"] = std::string(kMaxManifestBytes, 'x');
  EXPECT_THAT(
      [&] { render_manifest("m", manifest); },
      ThrowsMessage<CheckpointError>(HasSubstr("expected at most 33554432")));
  const TestFolder folder;
  write_bytes(folder / kManifestName, "");
  std::filesystem::resize_file(folder / kManifestName, kMaxManifestBytes + 1);
  EXPECT_THAT(
      [&] { read_manifest(folder.path()); },
      ThrowsMessage<CheckpointError>(HasSubstr("is too long; got 33554433 bytes")));
}

TEST(Manifest, IsReadFromARegularFileOnly) {
  const TestFolder folder;
  EXPECT_THAT(
      [&] { read_manifest(folder.path()); },
      ThrowsMessage<CheckpointError>(HasSubstr("has no manifest.json")));
  write_bytes(folder / "real.json", render_manifest("m", example()));
  std::filesystem::create_symlink("real.json", folder / kManifestName);
  EXPECT_THAT(
      [&] { read_manifest(folder.path()); },
      ThrowsMessage<CheckpointError>(HasSubstr("symbolic link")));
  std::filesystem::remove(folder / kManifestName);
  std::filesystem::rename(folder / "real.json", folder / kManifestName);
  EXPECT_EQ(read_manifest(folder.path()).sequence, 7);
}

}  // namespace
}  // namespace lockstep::storage
