// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "lockstep/accelerator/training_state/saved_state.h"
#include "lockstep/comm/group.h"
#include "lockstep/comm/tensor/named_tensor.h"
#include "lockstep/data/loader/loader_core.h"

namespace lockstep {

/// Functions that save and load the parts of a training state. Each check_* changes nothing, throws
/// CheckpointError for a state that does not fit this program, and returns a function that applies
/// it.

/// Returns parameters and buffers, each tensor once even if it has several names.
NamedTensors without_ties(NamedTensors parameters, const NamedTensors& buffers);

/// Returns the state of torch's default CPU generator.
at::Tensor random_state();
/// Returns it as "cpu", and with a CUDA `device` the state of its default generator as "cuda".
NamedTensors random_states(at::Device device);

/// Checks that `saved` has the names, shapes and dtypes of `current`; fp32 may become fp16 or bf16,
/// with a warning. Unless `strict`, names in only one of them are skipped, with a warning.
std::function<void()> check_model(
    const NamedTensors& current, NamedTensors saved, const std::string& path, bool strict = true);

/// Checks a loader's position, which is only valid for the same data. With another global batch
/// size the loader continues after the same samples.
std::function<void()> check_loader(
    const std::shared_ptr<data::LoaderCore>& loader, const SavedPosition& saved);

/// Checks random states. `stream` 0: the random numbers continue as saved. Else: a separate stream,
/// derived from the saved state and `stream`, for processes that did not exist when it was saved. A
/// state saved on a CPU leaves that of a CUDA `device` unchanged, and vice versa.
std::function<void()> check_random_state(
    const NamedTensors& saved, int stream, const std::string& path, at::Device device = at::kCPU);

/// Returns, by name, the sum over several ranks' saved tensors times `factor`. Integer tensors must
/// be equal, or the first rank's is taken. A tensor that some ranks lack counts as zero there.
NamedTensors sum_of(const std::vector<NamedTensors>& ranks, double factor);
/// Returns the mean over the ranks that have it; exact if all are equal.
NamedTensors mean_of(const std::vector<NamedTensors>& ranks);

/// Saves and restores the gradients of an unfinished accumulation group, by parameter name.
NamedTensors gradients_of(const NamedTensors& parameters);
std::function<void()> check_gradients(
    const NamedTensors& parameters, const NamedTensors& saved, const std::string& path);

/// Throws CheckpointError on all ranks if one of them has a `failure`. `could_not`: the verb of the
/// message. Collective.
void throw_together(
    Group& group,
    const std::string& failure,
    const std::filesystem::path& folder,
    const char* could_not);

}  // namespace lockstep
