// SPDX-License-Identifier: Apache-2.0
#include "lockstep/accelerator/accelerator_state.h"

#include "lockstep/base/error.h"

namespace lockstep {

ParameterName Accelerator::State::parameter_names(const char* where) const {
  auto names = std::make_shared<std::map<const void*, std::string>>();
  for (const Model& model : models) {
    for (const NamedTensor& item : model.parameters()) {
      names->emplace(item.tensor.unsafeGetTensorImpl(), model.prefix + item.name);
    }
  }
  if (sharding) {
    for (const auto& [piece, of] : sharding->pieces()) {
      names->emplace(piece, names->at(of.parameter.unsafeGetTensorImpl()));
    }
  }
  return [names, where = std::string(where)](const at::Tensor& parameter) {
    const auto found = names->find(parameter.unsafeGetTensorImpl());
    if (found == names->end()) {
      throw ConfigError(
          where, "an optimizer has a parameter of no prepared model; prepare that model too");
    }
    return found->second;
  };
}

ParameterName Accelerator::State::optimizer_names(const char* where) const {
  ParameterName names = parameter_names(where);
  for (const Optimizer& optimizer : optimizers) {
    for (const at::Tensor& parameter : optimizer.parameters()) {
      names(parameter);
    }
  }
  return names;
}

}  // namespace lockstep
