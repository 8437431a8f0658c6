// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <c10/util/ArrayRef.h>

#include "lockstep/accelerator/zero_setup/zero_units.h"
#include "lockstep/comm/tensor/named_tensor.h"

namespace lockstep {

/// An operation of a forward, with the module whose parameters it used, if any.
struct ModuleEvent {
  std::optional<size_t> module = std::nullopt;
  double began_ms = 0;  ///< Since the start of the forward.
  double ended_ms = 0;
  double macs = 0;
  double flops = 0;
};

/// The modules of a model, with the attribution of operations to them.
///
/// C++ modules do not report when they run. The attribution uses the parameters of operations: such
/// an operation belongs to the parameters' module, and operations between two of them belong to the
/// innermost module that holds both parameters. So totals are right for each module that holds the
/// parameters it computes with. An activation or a residual sum counts at the innermost level that
/// is certain, and a module without parameters counts nothing. One exception: operations between
/// two uses of the same module count as that module's. Before the first parameter and after the
/// last, operations belong to the model.
///
/// Thread safety: immutable; do not use it after a parameter got other memory.
class ModuleTree {
 public:
  struct Module {
    std::string name;  ///< Name within its parent; empty for the model.
    std::string type;  ///< Its class, without namespace and Impl.
    size_t parent = 0;
    int depth = 0;           ///< 0: the model.
    int64_t parameters = 0;  ///< Elements, including submodules; a tied parameter counts once.
  };
  /// The cost of a module with its submodules.
  struct Cost {
    double macs = 0;
    double flops = 0;
    double ms = 0;
  };

  ModuleTree() = default;
  /// Builds the tree from classes_of and parameters_of: outer modules first.
  ModuleTree(const internal::NamedClasses& modules, const NamedTensors& parameters);

  /// Returns the modules, outer ones first, in order of registration.
  const std::vector<Module>& modules() const { return modules_; }
  /// Returns the module of the first parameter, or view of one, among `inputs`. A tied parameter
  /// belongs to the module that was registered first.
  std::optional<size_t> owner_of(c10::ArrayRef<const c10::IValue> inputs) const;
  /// Computes the cost of each module for a forward that took `ms`, with `events` in order.
  std::vector<Cost> costs(const std::vector<ModuleEvent>& events, double ms) const;

 private:
  /// The bytes of a storage that a parameter uses.
  struct Range {
    int64_t end;
    size_t module;
  };
  std::optional<size_t> owner_of(const at::Tensor& tensor) const;
  size_t common_ancestor(size_t one, size_t other) const;

  std::vector<Module> modules_;
  std::unordered_map<const void*, size_t> tensors_;
  std::map<std::pair<const void*, int64_t>, Range> ranges_;
};

}  // namespace lockstep
