// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

#include <ATen/core/Tensor.h>

namespace lockstep::data {

struct IdxOptions {
  /// Maximum size of the contents in bytes. A larger file is refused before it is read.
  int64_t max_bytes = int64_t{4} << 30;
};

/// Reads a file in MNIST's IDX format, gzip or plain, into a uint8 tensor of its header's shape.
///
/// Throws ConfigError with path, found and expected value: no such file; no IDX magic; another type
/// than unsigned bytes; a header that exceeds `max_bytes`; contents shorter or longer than the
/// header says; a damaged gzip stream.
///
/// The header is not trusted: memory grows with the bytes read, at most to three times their size.
/// Reading stops at the first byte after the contents.
at::Tensor read_idx(const std::string& path, const IdxOptions& options = {});

}  // namespace lockstep::data
