// SPDX-License-Identifier: Apache-2.0
//
// All recipes as one program, since torch's headers take most of the time: recipes NAME [ARGUMENT].
// The headers that the recipes include must be above them.
#include <algorithm>
#include <cstdio>
#include <fstream>
#include <functional>
#include <iostream>
#include <limits>
#include <lockstep/comm/connect/connect.h>
#include <lockstep/expert_parallel/moe.h>
#include <lockstep/lockstep.h>
#include <map>
#include <memory>
#include <numeric>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include <torch/torch.h>

namespace early_stopping {
#include "examples/recipes/early_stopping.cpp"
}  // namespace early_stopping
namespace evaluation {
#include "examples/recipes/evaluation.cpp"
}  // namespace evaluation
namespace experts {
#include "examples/recipes/experts.cpp"
}  // namespace experts
namespace gan {
#include "examples/recipes/gan.cpp"
}  // namespace gan
namespace lstm {
#include "examples/recipes/lstm.cpp"
}  // namespace lstm
namespace mnist {
#include "examples/recipes/mnist.cpp"
}  // namespace mnist
namespace own_dataset {
#include "examples/recipes/own_dataset.cpp"
}  // namespace own_dataset
namespace port_after {
#include "examples/recipes/port_after.cpp"
}  // namespace port_after
namespace port_before {
#include "examples/recipes/port_before.cpp"
}  // namespace port_before
namespace quickstart {
#include "examples/recipes/quickstart.cpp"
}  // namespace quickstart
namespace seeds {
#include "examples/recipes/seeds.cpp"
}  // namespace seeds
namespace simulation {
#include "examples/recipes/simulation.cpp"
}  // namespace simulation
namespace stream {
#include "examples/recipes/stream.cpp"
}  // namespace stream
namespace sweep {
#include "examples/recipes/sweep.cpp"
}  // namespace sweep
namespace sync_batch_norm {
#include "examples/recipes/sync_batch_norm.cpp"
}  // namespace sync_batch_norm
namespace torch_data {
#include "examples/recipes/torch_data.cpp"
}  // namespace torch_data

namespace {

using Main = std::function<int(int argc, char** argv)>;

Main without_arguments(int (*recipe)()) {
  return [recipe](int /*argc*/, char** /*argv*/) { return recipe(); };
}

}  // namespace

int main(int argc, char** argv) {
  const std::map<std::string, Main> recipes = {
      {"early_stopping", without_arguments(early_stopping::main)},
      {"evaluation", without_arguments(evaluation::main)},
      {"experts", without_arguments(experts::main)},
      {"gan", gan::main},
      {"lstm", lstm::main},
      {"mnist", mnist::main},
      {"own_dataset", without_arguments(own_dataset::main)},
      {"port_after", without_arguments(port_after::main)},
      {"port_before", without_arguments(port_before::main)},
      {"quickstart", without_arguments(quickstart::main)},
      {"seeds", without_arguments(seeds::main)},
      {"simulation", without_arguments(simulation::main)},
      {"stream", without_arguments(stream::main)},
      {"sweep", without_arguments(sweep::main)},
      {"sync_batch_norm", without_arguments(sync_batch_norm::main)},
      {"torch_data", without_arguments(torch_data::main)}};
  const auto recipe = recipes.find(argc > 1 ? argv[1] : "");
  if (recipe == recipes.end()) {
    std::fprintf(stderr, "recipes: expected the name of a file in examples/recipes\n");
    return 2;
  }
  return recipe->second(argc - 1, argv + 1);
}
