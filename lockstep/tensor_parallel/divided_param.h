// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "lockstep/comm/group.h"
#include "lockstep/comm/tensor/divided_mark.h"
#include "lockstep/tensor_parallel/divided_layout.h"
#include "lockstep/tensor_parallel/style.h"

namespace lockstep::tensor_parallel {

/// Describes a divided weight to the operations that use it.
struct DividedParam final : comm::DividedInfo {
  DividedParam(
      std::string its_name,
      TensorStyle its_style,
      DividedLayout its_layout,
      Group its_group,
      bool divides_sequence,
      const void* its_line)
      : name(std::move(its_name)),
        style(its_style),
        layout(std::move(its_layout)),
        group(std::move(its_group)),
        sequence_parallel(divides_sequence),
        line(its_line) {}

  std::string name;
  TensorStyle style;
  DividedLayout layout;
  Group group;
  /// Activations between divided layers are divided along the sequence, their last dimension but
  /// one.
  bool sequence_parallel;
  const void* line;  ///< Equal for weights that share a group and `sequence_parallel`.
};

/// Registers kernels for the operations on marked weights, once. Throws ConfigError if other code
/// of this process uses the key.
///
/// - linear, addmm, mm, matmul and embedding compute the rank's part, and communicate as the style
///   says.
/// - Views are views of the part.
/// - Any other operation that autograd would record throws ConfigError: it would compute with a
/// part
///   of the weight. Without autograd (updates, copies) it computes with the part.
void install_dispatch();

}  // namespace lockstep::tensor_parallel
