// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::config {

/// A position in a file. Both numbers count from 1, columns in bytes.
struct Place {
  int line = 1;
  int column = 1;
};

struct Entry;

/// A value of a file with its position. Scalars keep their text: `no` is "no", 0x10 is "0x10";
/// their reader interprets it, see scalars.h.
struct Node {
  enum class Kind { kNull, kScalar, kList, kMap };

  const Node* find(const std::string& key) const;

  Kind kind = Kind::kNull;
  std::string text;     ///< A scalar without its quotes.
  bool quoted = false;  ///< The scalar stood in quotes, or was a YAML block (`|`, `>`).
  Place place;
  std::vector<Node> items;     ///< Values of a list.
  std::vector<Entry> entries;  ///< Keys and values of a map, in the file's order.
};

struct Entry {
  std::string key;
  Place place;  ///< The key's.
  Node value;
};

struct Document {
  std::string path;  ///< Used in messages.
  Node root;
};

enum class Format {
  kYaml,
  kJson,
  kCommentedJson,  ///< DeepSpeed's format of ds_config.json.
};

constexpr size_t kMaxDocumentBytes = size_t{1} << 20;
constexpr int kMaxDocumentDepth = 64;
constexpr size_t kMaxDocumentNodes = 10'000;  ///< With every alias expanded.

/// Parses one document; a null root means an empty one. Throws ConfigError `[path:line:column] ...`
/// for malformed text, for a key that is repeated or not a scalar, for exceeded limits, with
/// aliases expanded, and for bytes that are control characters or not UTF-8.
///
/// YAML is YAML 1.2 without tags, without a second document and without tabs before the first
/// character of a line. JSON is strict: no comments, no trailing commas. Commented JSON ignores
/// text after `#` or `//` in a line, text between `/*` and `*/`, and a comma before a closing
/// bracket: the commonly used part of HJSON.
Document parse_document(const std::string& path, std::string_view text, Format format);

/// Reads a file: JSON if its name ends in .json, else YAML. Throws ConfigError also if it cannot be
/// read. Follows symbolic links.
Document read_document(const std::filesystem::path& path);
Document read_document(const std::filesystem::path& path, Format format);

/// Formats "path:line:column", the start of messages.
std::string where(const Document& document, Place place);

}  // namespace lockstep::config
