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
#include "lockstep/comm/named_tensor.h"
#include "lockstep/data/loader/loader_core.h"

namespace lockstep {

/// The parts of a training state one by one. Each check_* changes nothing, throws CheckpointError
/// for what does not fit this program, and returns what puts the part in place.

/// Parameters and buffers, each tensor once though it may have several names.
NamedTensors without_ties(NamedTensors parameters, const NamedTensors& buffers);

/// State of torch's default CPU generator.
at::Tensor random_state();
/// The same as "cpu", and with a CUDA `device` that of its default generator as "cuda".
NamedTensors random_states(at::Device device);

/// Checks that `saved` is `current`'s names, shapes and dtypes; fp32 may become fp16 or bf16, with
/// a warning. Unless `strict`, names that only one of them has are left out, with a warning.
std::function<void()> check_model(
    const NamedTensors& current, NamedTensors saved, const std::string& path, bool strict = true);

/// A loader's position, which means something only over the same data. Where rounds have another
/// size now, it goes on after the same samples.
std::function<void()> check_loader(
    const std::shared_ptr<data::LoaderCore>& loader, const SavedPosition& saved);

/// `stream` 0: the random numbers go on as saved. Else: as a stream of their own that depends on
/// what was saved and on `stream`, for processes that were not there. What was saved on a CPU says
/// nothing of a CUDA `device`'s, which then stay as they are, and the other way round.
std::function<void()> check_random_state(
    const NamedTensors& saved, int stream, const std::string& path, at::Device device = at::kCPU);

/// By name, over what several ranks saved: the sum times `factor`; tensors that are no floating
/// point must be equal, or are the first's. A tensor some ranks lack counts as zero there.
NamedTensors sum_of(const std::vector<NamedTensors>& ranks, double factor);
/// The mean over the ranks that have it; exact where all are equal.
NamedTensors mean_of(const std::vector<NamedTensors>& ranks);

/// The gradients an accumulation group has so far, by parameter name; and back.
NamedTensors gradients_of(const NamedTensors& parameters);
std::function<void()> check_gradients(
    const NamedTensors& parameters, const NamedTensors& saved, const std::string& path);

/// All ranks go on, or all throw that the first of them that met a failure `could_not`. Collective.
void throw_together(
    Group& group,
    const std::string& failure,
    const std::filesystem::path& folder,
    const char* could_not);

}  // namespace lockstep
