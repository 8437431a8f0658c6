// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include <ATen/core/Tensor.h>

#include "lockstep/data/dataset/idx_images.h"
#include "lockstep/fwd.h"

namespace examples {

/// Holds the predictions of a model for N test pictures.
struct Evaluation {
  at::Tensor probabilities;  ///< (N, 10)
  at::Tensor targets;        ///< (N)

  double accuracy() const;
  double loss() const;
};

/// Holds the facts of a finished run.
struct Summary {
  int64_t parameters = 0;
  int64_t epochs = 0;
  int64_t steps = 0;
  int processes = 1;
  int64_t samples = 0;
  double seconds = 0;
  std::filesystem::path output;
};

/// Formats the summary of a run: model, speed, accuracy, files, and the command for its report.
std::string summary_text(const Summary& summary, const Evaluation& result);

/// Logs an evaluation on the main process: accuracy, loss, the confidence of all answers, the most
/// confident mistakes and the weakest classes. `test_set` has the pictures.
void log_evaluation(
    lockstep::Accelerator& accelerator,
    const Evaluation& result,
    const lockstep::data::IdxImages& test_set);

/// Writes a picture of wrongly classified test pictures. Each row has those of one class, the most
/// confident first; below each is the class that it was taken for. `test_set` has the
/// pictures.
void write_mistakes(
    const std::filesystem::path& path,
    const Evaluation& result,
    const lockstep::data::IdxImages& test_set);

}  // namespace examples
