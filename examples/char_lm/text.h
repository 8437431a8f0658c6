// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>

#include <ATen/core/Tensor.h>

#include "lockstep/data/sample/batch.h"

namespace examples {

/// A text as numbers, one a character, and back.
class Text {
 public:
  /// All *_gut.txt files of a folder in the order of their names (the plays and poems of the
  /// package `shakespeare`), or one file of any text. ConfigError if there is nothing to read.
  explicit Text(const std::filesystem::path& path);

  /// Different characters, at most 256: bytes.
  int64_t vocabulary() const { return static_cast<int64_t>(alphabet_.size()); }
  /// uint8, one number a character.
  const at::Tensor& tokens() const { return tokens_; }
  /// ConfigError for a character that the text does not have.
  at::Tensor encode(const std::string& text) const;
  std::string decode(const at::Tensor& tokens) const;

 private:
  std::string alphabet_;
  at::Tensor tokens_;
};

/// Stretches of `length` characters and, as target, the same one character further on. One sample
/// begins where the last one's target ends.
class Stretches {
 public:
  using Batch = lockstep::data::Batch;

  /// Of tokens [begin, end). ConfigError if there is not one stretch in it.
  Stretches(const at::Tensor& tokens, int64_t begin, int64_t end, int64_t length);
  int64_t size() const { return (tokens_.size(0) - 1) / length_; }
  Batch get_batch(std::span<const int64_t> indices) const;

 private:
  at::Tensor tokens_;
  int64_t length_;
};

/// Where scripts/bootstrap puts the works of Shakespeare.
std::filesystem::path default_text();

}  // namespace examples
