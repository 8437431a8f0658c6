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

/// What operations of one name have computed.
struct OperationCount {
  int64_t count = 0;
  double macs = 0;  ///< Multiplications that are added up: of matrix products and convolutions.
  double flops = 0;
  double ms = 0;
};

/// What one operation of that name ("addmm") computes on `inputs`, by their shapes; nothing if it
/// is not known to compute: views, copies, lookups, or what is made of others, which count.
///
/// As DeepSpeed's profiler has it: a matrix product or convolution has a MAC, and two FLOPs, for
/// each product (what a bias adds is not counted); softmax, activations, sums and arithmetic have
/// one FLOP an element, normalisations four, or five with weights.
std::optional<OperationCount> operation_count(
    const std::string& name, c10::ArrayRef<const c10::IValue> inputs);

/// Counts the operations that this thread runs between start() and stop(), by libtorch's
/// RecordFunction. An operation within one that counts does not count again.
///
/// Cost while it counts: some microseconds an operation, and with `wait_for_device` the wait after
/// each, without which the times would be those of launching. Thread safety: none; start and stop
/// in one thread.
class FlopsCounter {
 public:
  FlopsCounter() = default;
  ~FlopsCounter() { stop(); }
  FlopsCounter(const FlopsCounter&) = delete;
  FlopsCounter& operator=(const FlopsCounter&) = delete;

  /// `modules`, if given, tells whose parameters operations touch; it must live until stop().
  void start(std::function<void()> wait_for_device, const ModuleTree* modules = nullptr);
  void stop();
  /// By name; added up over all that was counted since clear().
  const std::map<std::string, OperationCount>& operations() const { return operations_; }
  /// What modules cost, one each and in the tree's order, added up as well; empty without any.
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
  // Between start and stop.
  const ModuleTree* tree_ = nullptr;
  std::vector<ModuleEvent> events_;
  std::chrono::steady_clock::time_point began_;
};

}  // namespace lockstep
