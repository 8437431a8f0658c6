// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/ivalue.h>
#include <ATen/record_function.h>
#include <c10/util/ArrayRef.h>

#include "lockstep/engine/profiler/module_tree.h"

namespace lockstep {

/// The computation of all operations of one name.
struct OperationCount {
  int64_t count = 0;
  double macs = 0;  ///< Multiply-accumulates of matrix products and convolutions.
  double flops = 0;
  double ms = 0;
};

/// Returns the computation of one operation of that name ("addmm") on `inputs`, by their shapes.
/// Returns nothing for operations without arithmetic (views, copies, lookups), and for operations
/// that consist of counted ones.
///
/// The rules are DeepSpeed's: a matrix product or convolution has a MAC, and two FLOPs, for each
/// product; bias additions are not counted. Softmax, activations, sums and arithmetic have one FLOP
/// an element, normalisations four, or five with weights.
std::optional<OperationCount> operation_count(
    const std::string& name, c10::ArrayRef<const c10::IValue> inputs);

/// Counts the operations that this thread runs between start() and stop(), with libtorch's
/// RecordFunction. Operations within a counted one are not counted.
///
/// Cost while counting: some microseconds an operation, and with `wait_for_device` a wait after
/// each, without which times would be launch times. Not thread-safe; start and stop in one thread.
class FlopsCounter {
 public:
  FlopsCounter() = default;
  ~FlopsCounter() { stop(); }
  FlopsCounter(const FlopsCounter&) = delete;
  FlopsCounter& operator=(const FlopsCounter&) = delete;

  /// Starts counting. `modules`, if given, maps parameters to modules; it must live until stop().
  void start(std::function<void()> wait_for_device, const ModuleTree* modules = nullptr);
  void stop();
  /// Returns the operations by name, summed since clear().
  const std::map<std::string, OperationCount>& operations() const { return operations_; }
  /// Returns the cost of each module, in the tree's order, summed; empty without modules.
  const std::vector<ModuleTree::Cost>& modules() const { return modules_; }
  void clear() {
    operations_.clear();
    modules_.clear();
  }

 private:
  struct Running;
  static std::unique_ptr<at::ObserverContext> begin(const at::RecordFunction& function);
  static void end(const at::RecordFunction& function, at::ObserverContext* context);

  std::map<std::string, OperationCount> operations_;
  std::vector<ModuleTree::Cost> modules_;
  std::function<void()> wait_for_device_;
  std::optional<at::CallbackHandle> handle_;
  // Valid between start and stop.
  const ModuleTree* tree_ = nullptr;
  std::vector<ModuleEvent> events_;
  std::chrono::steady_clock::time_point began_;
};

}  // namespace lockstep
