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
#include "lockstep/comm/named_tensor.h"

namespace lockstep {

/// An operation of a forward, or what lies between two: whose parameters it touched, if any's.
struct ModuleEvent {
  std::optional<size_t> module = std::nullopt;
  double began_ms = 0;  ///< Since the forward began.
  double ended_ms = 0;
  double macs = 0;
  double flops = 0;
};

/// The modules of a model, and which of them an operation belongs to.
///
/// Modules of C++'s torch do not say when they run. What is known is whose parameters an operation
/// touches, so that one is this module's; and that a module which holds both the last parameter
/// touched and the next one was running in between, so what comes in between is the innermost such
/// module's. So a total is right for each module that holds what it computes with: an activation or
/// a residual sum is counted no further in than where it is certain, and a module without
/// parameters has nothing of its own. (One exception: what a program does between two uses of the
/// same module counts as that module's.) Before the first parameter and after the last it is the
/// model's.
///
/// Thread safety: immutable; not to be used once a parameter got other memory.
class ModuleTree {
 public:
  struct Module {
    std::string name;  ///< Within its parent; of the model itself empty.
    std::string type;  ///< Its class, without namespace and Impl.
    size_t parent = 0;
    int depth = 0;           ///< 0: the model.
    int64_t parameters = 0;  ///< Elements, with those within; a tied one counts once.
  };
  /// What a module and those within it cost.
  struct Cost {
    double macs = 0;
    double flops = 0;
    double ms = 0;
  };

  ModuleTree() = default;
  /// As classes_of and parameters_of give them: outer modules first.
  ModuleTree(const NamedClasses& modules, const NamedTensors& parameters);

  /// Outer ones first, in the order they were registered in.
  const std::vector<Module>& modules() const { return modules_; }
  /// Whose parameter, or view of one, is the first among `inputs` that is any's. A tied one is that
  /// of the module that was registered first.
  std::optional<size_t> owner_of(c10::ArrayRef<const c10::IValue> inputs) const;
  /// Of a forward that took `ms`, with `events` in order; one a module.
  std::vector<Cost> costs(const std::vector<ModuleEvent>& events, double ms) const;

 private:
  /// Bytes of a storage that are a parameter.
  struct Range {
    int64_t end;
    size_t module;
  };
  std::optional<size_t> owner_of(const at::Tensor& tensor) const;
  size_t innermost_around(size_t one, size_t other) const;

  std::vector<Module> modules_;
  std::unordered_map<const void*, size_t> tensors_;
  std::map<std::pair<const void*, int64_t>, Range> ranges_;
};

}  // namespace lockstep
