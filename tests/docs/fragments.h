// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Names that a fragment of code in docs/ may use without declaring them. scripts/check_docs only
/// checks syntax and types, so nothing is defined.

#include <memory>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include <ATen/DeviceAccelerator.h>
#include <ATen/accelerator/Graph.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/torch.h>

#include "examples/fashion_mnist/net.h"
#include "lockstep/config/config_file.h"
#include "lockstep/lockstep.h"

#pragma GCC diagnostic ignored "-Wunused-variable"

namespace docs_fragments {

namespace data = lockstep::data;
namespace optim = lockstep::optim;
namespace schedule = lockstep::schedule;
using examples::Net;

/// A batch of a loader; where a fragment copies into it, its inputs.
struct FragmentBatch : at::Tensor {
  at::Tensor data;
  at::Tensor target;
};

extern Net net, model;
extern lockstep::Accelerator& accelerator;
extern lockstep::Optimizer optimizer;
extern lockstep::Engine<Net> engine;
extern std::vector<at::Tensor> parameters, batches;
extern FragmentBatch batch;
extern data::IdxImages test_set;
extern at::Device device;
extern double rate;
at::Tensor criterion(const at::Tensor& answer, const at::Tensor& target);
void step(const FragmentBatch& batch);

}  // namespace docs_fragments
