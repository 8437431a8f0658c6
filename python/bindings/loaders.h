// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "lockstep/data/loader/loader_core.h"
#include "lockstep/data/order/sampler.h"

namespace lockstep::python {

/// The order, shard and position of a Python DataLoader, which reads the samples itself.
class PythonLoader {
 public:
  PythonLoader(
      const data::SourceInfo& source,
      const data::LoaderOptions& options,
      std::shared_ptr<const data::Sampler> sampler);
  const std::shared_ptr<data::LoaderCore>& core() const { return core_; }

 private:
  std::shared_ptr<data::LoaderCore> core_;
};

}  // namespace lockstep::python
