// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

#include <ATen/core/Tensor.h>

namespace lockstep::data {

struct IdxOptions {
  /// Contents larger than this are refused before anything is read.
  int64_t max_bytes = int64_t{4} << 30;
};

/// Reads a file in MNIST's IDX format, gzip or plain, into a uint8 tensor of its header's shape.
///
/// ConfigError, naming the path, what was found and what was expected: no such file; no IDX magic;
/// another type than unsigned bytes; a header that asks for more than `max_bytes`; contents shorter
/// or longer than the header says; a damaged gzip stream. The header is not believed: memory grows
/// with what was really read, at most to three times that, and a stream that goes on beyond its
/// header is left at its first extra byte.
at::Tensor read_idx(const std::string& path, const IdxOptions& options = {});

}  // namespace lockstep::data
