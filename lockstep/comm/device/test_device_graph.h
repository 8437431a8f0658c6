// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <torch/version.h>

// Graphs of any device came to libtorch piece by piece up to here.
#if TORCH_VERSION_MAJOR > 2 || TORCH_VERSION_MINOR >= 13
#define LOCKSTEP_TEST_GRAPHS 1
#else
#define LOCKSTEP_TEST_GRAPHS 0
#endif

/// Graphs of the test device, which at::accelerator::Graph captures and replays as it does CUDA's.
/// What a thread tells the device between capture_begin and capture_end is kept, not done: memory
/// stays as it was. A replay does it again, on the same memory, with the same numbers of the host.
/// While capturing, what would make the host wait for the device is an error, and so are copies
/// between the two.
namespace lockstep::test_graphs {

/// Of this thread.
bool capturing();
/// Does `work`, or, while capturing, keeps it.
void tell(std::function<void()> work);
/// Calls an operator by `compute`, or, while capturing, keeps it: what it gives has its shape then,
/// and its values after a replay.
void call(
    const c10::OperatorHandle& op,
    torch::jit::Stack& stack,
    void (*compute)(const c10::OperatorHandle& op, torch::jit::Stack* stack));
/// c10::Error naming `what` while capturing.
void refuse_while_capturing(const char* what);
/// Makes the graphs known to libtorch. Once, when the device has its name.
void register_graphs();

}  // namespace lockstep::test_graphs
