// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include <ATen/core/Tensor.h>

namespace examples {

/// What a model says about N test pictures.
struct Evaluation {
  at::Tensor probabilities;  ///< (N, 10)
  at::Tensor targets;        ///< (N)

  double accuracy() const;
  double loss() const;
};

struct Summary {
  int64_t parameters = 0;
  int64_t epochs = 0;
  int64_t steps = 0;
  int processes = 1;
  int64_t samples = 0;
  double seconds = 0;
  std::filesystem::path output;
};

/// What was trained, how fast, how well, and which files to look at, for a person.
std::string summary_text(const Summary& summary, const Evaluation& result);

/// A picture of what the model got wrong, surest first, a row for each class it named; `data_root`
/// has the pictures.
void write_mistakes(
    const std::filesystem::path& path, const Evaluation& result, const std::string& data_root);

}  // namespace examples
