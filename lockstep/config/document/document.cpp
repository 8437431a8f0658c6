// SPDX-License-Identifier: Apache-2.0
#include "lockstep/config/document/document.h"

#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>

#include <fmt/format.h>

#include "lockstep/base/error.h"
#include "lockstep/config/document/tree_builder.h"

namespace lockstep::config {
namespace {

constexpr std::string_view kByteOrderMark = "\xef\xbb\xbf";

unsigned char byte_at(std::string_view text, size_t at) {
  return at < text.size() ? static_cast<unsigned char>(text[at]) : 0;
}

bool continues(unsigned char byte) {
  return (byte & 0xc0U) == 0x80U;
}

/// Returns the number of bytes of the UTF-8 character at `at`; 0 for an invalid one: an overlong
/// form, a surrogate, or a number past the last character.
size_t character_bytes(std::string_view text, size_t at) {
  const unsigned char first = byte_at(text, at);
  const unsigned char second = byte_at(text, at + 1);
  const bool two = continues(second);
  const bool three = two && continues(byte_at(text, at + 2));
  const bool four = three && continues(byte_at(text, at + 3));
  if (first < 0x80) {
    return 1;
  }
  if (first >= 0xc2 && first < 0xe0) {
    return two ? 2 : 0;
  }
  if (first >= 0xe0 && first < 0xf0) {
    const bool fits = (first != 0xe0 || second >= 0xa0) && (first != 0xed || second < 0xa0);
    return three && fits ? 3 : 0;
  }
  if (first >= 0xf0 && first < 0xf5) {
    const bool fits = (first != 0xf0 || second >= 0x90) && (first != 0xf4 || second < 0x90);
    return four && fits ? 4 : 0;
  }
  return 0;
}

bool is_control(unsigned char byte) {
  return (byte < 0x20 && byte != '\t' && byte != '\n' && byte != '\r') || byte == 0x7f;
}

/// Refuses invalid bytes. Both parsers accept them: one replaces them, the other ends at a NUL.
void check_bytes(std::string_view text, const TreeBuilder& builder) {
  Place place;
  for (size_t at = 0; at < text.size();) {
    const unsigned char byte = byte_at(text, at);
    const size_t size = character_bytes(text, at);
    if (size == 0) {
      builder.fail(place, fmt::format("invalid UTF-8; got byte 0x{:02x}", byte));
    }
    if (is_control(byte)) {
      builder.fail(place, fmt::format("control character; got byte 0x{:02x}", byte));
    }
    if (byte == '\n') {
      ++place.line;
      place.column = 1;
    } else {
      place.column += static_cast<int>(size);
    }
    at += size;
  }
}

struct FileCloser {
  void operator()(std::FILE* file) const { std::fclose(file); }
};

[[noreturn]] void fail_to_read(const std::filesystem::path& path, int error) {
  throw ConfigError(path.native(), fmt::format("cannot be read; {}", std::strerror(error)));
}

}  // namespace

const Node* Node::find(const std::string& key) const {
  for (const Entry& entry : entries) {
    if (entry.key == key) {
      return &entry.value;
    }
  }
  return nullptr;
}

Document parse_document(const std::string& path, std::string_view text, Format format) {
  if (text.size() > kMaxDocumentBytes) {
    throw ConfigError(
        path, fmt::format("file too large; expected at most {} MiB", kMaxDocumentBytes >> 20));
  }
  if (text.starts_with(kByteOrderMark)) {
    text.remove_prefix(kByteOrderMark.size());
  }
  TreeBuilder builder(path);
  check_bytes(text, builder);
  switch (format) {
    case Format::kYaml:
      read_yaml(text, builder);
      break;
    case Format::kJson:
      read_json(text, builder);
      break;
    case Format::kCommentedJson:
      read_json(without_comments(text, builder), builder);
      break;
  }
  return {path, builder.take()};
}

Document read_document(const std::filesystem::path& path) {
  return read_document(path, path.extension() == ".json" ? Format::kJson : Format::kYaml);
}

Document read_document(const std::filesystem::path& path, Format format) {
  const std::unique_ptr<std::FILE, FileCloser> file(std::fopen(path.c_str(), "re"));
  if (file == nullptr) {
    fail_to_read(path, errno);
  }
  std::string text;
  std::array<char, 65536> chunk;
  while (text.size() <= kMaxDocumentBytes) {
    const size_t size = std::fread(chunk.data(), 1, chunk.size(), file.get());
    if (size == 0) {
      break;
    }
    text.append(chunk.data(), size);
  }
  if (std::ferror(file.get()) != 0) {
    fail_to_read(path, errno);
  }
  return parse_document(path.native(), text, format);
}

std::string where(const Document& document, Place place) {
  return fmt::format("{}:{}:{}", document.path, place.line, place.column);
}

}  // namespace lockstep::config
