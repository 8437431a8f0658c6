// SPDX-License-Identifier: Apache-2.0
#include "lockstep/storage/manifest.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <limits>
#include <set>
#include <system_error>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "lockstep/base/error.h"
#include "lockstep/base/memory/crc32c.h"
#include "lockstep/base/text/words.h"
#include "lockstep/storage/deepspeed_folder.h"
#include "lockstep/storage/file/files.h"
#include "lockstep/storage/safetensors/json_text.h"
#include "lockstep/storage/safetensors/safetensors_header.h"

namespace lockstep::storage {
namespace {

using Json = nlohmann::json;

// Keys are sorted, so the checksum comes first and can cover everything behind it.
constexpr std::string_view kBeforeCrc = "{\n  \"crc32c\": \"";
constexpr size_t kHexDigits = 8;

std::string hex(uint32_t crc) {
  return fmt::format("{:08x}", crc);
}

[[noreturn]] void refuse(const std::string& path, const std::string& why) {
  throw CheckpointError(path, "is not a valid manifest; " + why);
}

uint32_t parse_hex(const std::string& path, const Json& value) {
  uint32_t crc = 0;
  const std::string text = value.is_string() ? value.get<std::string>() : std::string();
  const auto end = std::from_chars(text.data(), text.data() + text.size(), crc, 16);
  // Rendering the value again refuses capitals and signs.
  if (end.ec != std::errc() || hex(crc) != text) {
    refuse(
        path, fmt::format("got {} for a crc32c, expected 8 hex digits", in_quotes(value.dump())));
  }
  return crc;
}

int64_t parse_count(
    const std::string& path, const Json& value, const char* what, int64_t least, int64_t most) {
  if (!value.is_number_unsigned() || value.get<uint64_t>() < static_cast<uint64_t>(least) ||
      value.get<uint64_t>() > static_cast<uint64_t>(most)) {
    refuse(
        path,
        fmt::format(
            "got {} for {}, expected a whole number from {} to {}",
            in_quotes(value.dump()),
            what,
            least,
            most));
  }
  return value.get<int64_t>();
}

/// Throws unless `object` has exactly these keys. An unknown key could change the meaning of
/// others.
void expect_keys(const std::string& path, const Json& object, const std::set<std::string>& keys) {
  std::set<std::string> found;
  if (object.is_object()) {
    for (const auto& [key, value] : object.items()) {
      found.insert(key);
    }
  }
  if (found != keys) {
    std::string list = in_quotes(fmt::format("{}", fmt::join(found, ", ")));
    refuse(path, fmt::format("got the keys {}, expected {}", list, fmt::join(keys, ", ")));
  }
}

/// Checks the version. Called first, since another version may differ in everything else.
void check_version(const std::string& path, const Json& json) {
  if (!json.is_object() || !json.contains("format") || json["format"] != kManifestFormat ||
      !json.contains("version")) {
    refuse(
        path,
        fmt::format("expected an object with \"format\": \"{}\" and a version", kManifestFormat));
  }
  if (json["version"] != kFormatVersion) {
    throw CheckpointError(
        path,
        fmt::format(
            "has a format version that this program cannot read; got {}, expected {}; use the "
            "Lockstep that wrote it, or a newer one",
            in_quotes(json["version"].dump()),
            kFormatVersion));
  }
}

// The checksum covers the bytes from here on.
constexpr size_t kCoveredFrom = kBeforeCrc.size() + kHexDigits;

bool begins_with_crc(const std::string& text) {
  return text.size() >= kCoveredFrom && text.starts_with(kBeforeCrc);
}

void check_own_crc(const std::string& path, const std::string& text) {
  if (!begins_with_crc(text)) {
    refuse(path, "expected its checksum at the beginning");
  }
  const std::string stored = text.substr(kBeforeCrc.size(), kHexDigits);
  const std::string computed = hex(crc32c(std::string_view(text).substr(kCoveredFrom)));
  if (stored != computed) {
    refuse(
        path,
        fmt::format(
            "its content is damaged; got crc32c {}, expected {}", computed, in_quotes(stored)));
  }
}

}  // namespace

void check_file_name(const std::string& path, const std::string& name) {
  const bool plain = is_utf8(name) && !name.empty() && name.size() <= 255 && name.front() != '.' &&
                     name.find("..") == std::string::npos && name != kManifestName &&
                     std::none_of(name.begin(), name.end(), [](unsigned char c) {
                       return c == '/' || std::iscntrl(c) != 0;
                     });
  if (!plain) {
    throw CheckpointError(
        path,
        fmt::format(
            "has an invalid file name; got {}, expected a name without '/' or \"..\", without a "
            "leading '.', and not {}",
            in_quotes(name),
            kManifestName));
  }
}

Json to_json(const FileRecord& record) {
  Json tensors = Json::object();
  for (const auto& [name, crc] : record.summary.tensors) {
    tensors[name] = hex(crc);
  }
  return {
      {"name", record.name},
      {"bytes", record.summary.bytes},
      {"crc32c", hex(record.summary.crc32c)},
      {"tensors", std::move(tensors)}};
}

FileRecord file_record_from_json(const std::string& path, const Json& json) {
  expect_keys(path, json, {"bytes", "crc32c", "name", "tensors"});
  if (!json["name"].is_string() || !json["tensors"].is_object()) {
    refuse(path, "expected a string for a file's name and an object for its tensors");
  }
  FileRecord record;
  record.name = json["name"].get<std::string>();
  check_file_name(path, record.name);
  record.summary.bytes = static_cast<uint64_t>(
      parse_count(path, json["bytes"], "bytes", 0, std::numeric_limits<int64_t>::max()));
  record.summary.crc32c = parse_hex(path, json["crc32c"]);
  for (const auto& [name, crc] : json["tensors"].items()) {
    record.summary.tensors[name] = parse_hex(path, crc);
  }
  return record;
}

std::string render_manifest(const std::string& path, const Manifest& manifest) {
  if (!manifest.meta.is_object()) {
    throw CheckpointError(
        path,
        fmt::format(
            "cannot be written; got meta of type {}, expected an object",
            manifest.meta.type_name()));
  }
  Json files = Json::array();
  for (const FileRecord& record : manifest.files) {
    files.push_back(to_json(record));
  }
  std::string text = render_json(
      path,
      {{"crc32c", std::string(kHexDigits, '0')},
       {"files", std::move(files)},
       {"format", kManifestFormat},
       {"meta", manifest.meta},
       {"sequence", manifest.sequence},
       {"version", kFormatVersion},
       {"world_size", manifest.world_size}});
  if (text.size() > kMaxManifestBytes) {
    throw CheckpointError(
        path,
        fmt::format(
            "cannot be written; got {} bytes, expected at most {}; save fewer tensors or less meta",
            text.size(),
            kMaxManifestBytes));
  }
  text.replace(
      kBeforeCrc.size(), kHexDigits, hex(crc32c(std::string_view(text).substr(kCoveredFrom))));
  return text;
}

Manifest parse_manifest(const std::string& path, const std::string& text) {
  // The complete JSON is parsed last, after the checksum has proved that a save wrote it.
  check_version(path, parse_json_outline(path, text));
  check_own_crc(path, text);
  const Json json = parse_json(path, text);
  expect_keys(
      path, json, {"crc32c", "files", "format", "meta", "sequence", "version", "world_size"});
  if (!json["files"].is_array() || !json["meta"].is_object()) {
    refuse(path, "expected a list for files and an object for meta");
  }
  Manifest manifest;
  manifest.sequence =
      parse_count(path, json["sequence"], "sequence", 1, std::numeric_limits<int64_t>::max() - 1);
  manifest.world_size = static_cast<int>(
      parse_count(path, json["world_size"], "world_size", 1, std::numeric_limits<int>::max()));
  manifest.meta = json["meta"];
  std::set<std::string> names;
  for (const Json& file : json["files"]) {
    manifest.files.push_back(file_record_from_json(path, file));
    if (!names.insert(manifest.files.back().name).second) {
      refuse(path, fmt::format("{} is listed twice", in_quotes(manifest.files.back().name)));
    }
  }
  return manifest;
}

bool is_newer_manifest(const std::string& path, const std::string& text) {
  try {
    const Json outline = parse_json_outline(path, text);
    if (!outline.is_object() || outline.value("format", Json()) != kManifestFormat) {
      return false;
    }
    const Json version = outline.value("version", Json());
    if (!version.is_number_unsigned() || version <= kFormatVersion) {
      return false;
    }
    // A flipped bit could also change the version.
    if (begins_with_crc(text)) {
      check_own_crc(path, text);
    }
    return true;
  } catch (const CheckpointError&) {
    return false;
  }
}

CheckpointError not_a_checkpoint(const std::filesystem::path& folder) {
  if (const auto why = why_not_folder(folder)) {
    return {folder, *why};
  }
  if (const auto theirs = deepspeed_checkpoint(folder)) {
    return *theirs;
  }
  return {
      folder,
      fmt::format("is not a checkpoint; it has no {}, which is written last", kManifestName)};
}

Manifest read_manifest(const std::filesystem::path& folder) {
  const std::filesystem::path path = folder / kManifestName;
  if (!name_exists(path)) {
    throw not_a_checkpoint(folder);
  }
  return parse_manifest(path, read_file(path, kMaxManifestBytes));
}

bool is_checkpoint(const std::filesystem::path& folder) {
  std::error_code error;
  if (!std::filesystem::exists(folder / kManifestName, error)) {
    return false;
  }
  try {
    read_manifest(folder);
    return true;
  } catch (const CheckpointError&) {
    return false;
  }
}

}  // namespace lockstep::storage
