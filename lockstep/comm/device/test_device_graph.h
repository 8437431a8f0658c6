// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <torch/version.h>

// The first version of libtorch with graphs for any device.
#if TORCH_VERSION_MAJOR > 2 || TORCH_VERSION_MINOR >= 13
#define LOCKSTEP_TEST_GRAPHS 1
#else
#define LOCKSTEP_TEST_GRAPHS 0
#endif

/// Captures and replays graphs of the test device by at::accelerator::Graph, like CUDA's.
///
/// Work that a thread enqueues between capture_begin and capture_end is recorded, not executed:
/// memory stays unchanged. A replay executes the work on the same memory, with the same numbers of
/// the host. While capturing, waiting for the device, and copies between host and device, are
/// errors.
namespace lockstep::test_graphs {

/// Returns whether this thread captures a graph.
bool capturing();
/// Executes `work`; records it while capturing.
void run_or_record(std::function<void()> work);
/// Calls an operator by `compute`; records it while capturing. Its results then have only their
/// shapes, and get their values in a replay.
void call(
    const c10::OperatorHandle& op,
    torch::jit::Stack& stack,
    void (*compute)(const c10::OperatorHandle& op, torch::jit::Stack* stack));
/// Throws c10::Error naming `what` while capturing.
void refuse_while_capturing(const char* what);
/// Registers the graphs with libtorch. Call it once, after the device has its name.
void register_graphs();

}  // namespace lockstep::test_graphs
