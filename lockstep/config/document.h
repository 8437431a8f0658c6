// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::config {

/// Where something stands in a file. Both count from 1, columns in bytes.
struct Place {
  int line = 1;
  int column = 1;
};

struct Entry;

/// A value of a file, which knows where it stands. Scalars keep their text: `no` is "no", 0x10 is
/// "0x10"; what they mean is for whoever reads them to say, see scalars.h.
struct Node {
  enum class Kind { kNull, kScalar, kList, kMap };

  const Node* find(const std::string& key) const;

  Kind kind = Kind::kNull;
  std::string text;     ///< Of a scalar, without its quotes.
  bool quoted = false;  ///< The scalar stood in quotes, or was a YAML block (`|`, `>`).
  Place place;
  std::vector<Node> items;     ///< Of a list.
  std::vector<Entry> entries;  ///< Of a map, in the file's order.
};

struct Entry {
  std::string key;
  Place place;  ///< The key's.
  Node value;
};

struct Document {
  std::string path;  ///< As messages name it.
  Node root;
};

enum class Format {
  kYaml,
  kJson,
  kCommentedJson,  ///< As DeepSpeed reads its ds_config.json.
};

constexpr size_t kMaxDocumentBytes = size_t{1} << 20;
constexpr int kMaxDocumentDepth = 64;
constexpr size_t kMaxDocumentNodes = 10'000;  ///< With every alias written out.

/// Reads one document, of which a null root is an empty one. ConfigError `[path:line:column] ...`
/// for what is malformed; for a key that is given twice or is no scalar; for more than the limits
/// above, an alias counting as what it stands for; for bytes that are not UTF-8, and control
/// characters.
///
/// YAML is YAML 1.2 without tags, without a second document and without tabs before the first
/// character of a line. JSON is strict: no comments, no trailing commas. Commented JSON has both:
/// what follows `#` or `//` in a line, what stands between `/*` and `*/`, and a comma before a
/// closing bracket count as nothing. It is the part of HJSON that people use.
Document parse_document(const std::string& path, std::string_view text, Format format);

/// The same of a file: JSON if its name ends in .json, else YAML. ConfigError also if it cannot be
/// read. Follows symbolic links.
Document read_document(const std::filesystem::path& path);
Document read_document(const std::filesystem::path& path, Format format);

/// "path:line:column", which messages begin with.
std::string where(const Document& document, Place place);

}  // namespace lockstep::config
