// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "lockstep/accelerator/accelerator.h"
#include "lockstep/accelerator/active_loaders.h"
#include "lockstep/sync/data_parallel.h"
#include "lockstep/tracking/tracker.h"

namespace lockstep {

/// What an Accelerator holds; shared by its sources alone.
struct Accelerator::State {
  struct Model {
    const void* id;
    std::string
        prefix;  ///< Of its parameters' names in checkpoints: "" for the first, "model_1." ...
    Tensors parameters;
    Tensors buffers;
    std::shared_ptr<DataParallel> parallel;
  };

  AcceleratorOptions options;
  WorldSpec world;
  Group group;
  std::vector<Model> models;
  /// Those of `models`, as the optimizers see them: also of models prepared after an optimizer.
  std::shared_ptr<DataParallels> parallels = std::make_shared<DataParallels>();
  std::vector<Optimizer> optimizers;
  std::vector<std::shared_ptr<data::LoaderCore>> loaders;
  std::shared_ptr<ActiveLoaders> active = std::make_shared<ActiveLoaders>();
  std::vector<std::unique_ptr<tracking::Tracker>> trackers;
  bool trackers_open = false;
};

}  // namespace lockstep
