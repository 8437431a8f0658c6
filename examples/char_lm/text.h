// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>

#include <ATen/core/Tensor.h>

#include "lockstep/data/sample/batch.h"

namespace examples {

/// Holds a text, encoded with one number for each character.
class Text {
 public:
  /// Reads a text file, or all *_gut.txt files of a folder in the order of their names (the package
  /// `shakespeare`). Throws ConfigError if it finds no text.
  explicit Text(const std::filesystem::path& path);

  /// Returns the number of different characters (bytes), at most 256.
  int64_t vocabulary() const { return static_cast<int64_t>(alphabet_.size()); }
  /// Returns the encoded text: uint8, shape (characters).
  const at::Tensor& tokens() const { return tokens_; }
  /// Encodes `text` as uint8 (characters). Throws ConfigError for a character that is not in this
  /// text.
  at::Tensor encode(const std::string& text) const;
  std::string decode(const at::Tensor& tokens) const;

 private:
  std::string alphabet_;
  at::Tensor tokens_;
};

/// Provides a dataset of chunks of `length` characters. Targets are the chunks shifted by one
/// character. Chunks do not overlap.
class TextChunks {
 public:
  using Batch = lockstep::data::Batch;

  /// Uses tokens [begin, end). Throws ConfigError if they are too few for one chunk.
  TextChunks(const at::Tensor& tokens, int64_t begin, int64_t end, int64_t length);
  int64_t size() const { return (tokens_.size(0) - 1) / length_; }
  Batch get_batch(std::span<const int64_t> indices) const;

 private:
  at::Tensor tokens_;
  int64_t length_;
};

/// Returns the folder in which scripts/bootstrap installs the works of Shakespeare.
std::filesystem::path default_text();

}  // namespace examples
