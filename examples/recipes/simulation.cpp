// SPDX-License-Identifier: Apache-2.0
// mpirun starts the processes: mpirun -n 3 simulation. Two on each host train a network. The other
// processes simulate, and send their samples to those two.
#include <algorithm>
#include <lockstep/comm/connect/connect.h>
#include <lockstep/lockstep.h>
#include <string>
#include <vector>

#include <torch/torch.h>

namespace data = lockstep::data;
namespace optim = lockstep::optim;

namespace {

constexpr int kTrainersOfAHost = 2;
constexpr int kSteps = 300;
constexpr int64_t kBatch = 64;

/// Simulates one batch: float [batch, 2], of x and the measured sin(x).
at::Tensor simulate() {
  const auto x = torch::rand({kBatch}) * 6 - 3;
  return torch::stack({x, x.sin() + 0.05 * torch::randn({kBatch})}, 1);
}

/// The ranks of all processes by their task.
struct Roles {
  std::vector<int> trainers, simulators;

  /// Returns the rank that simulates the batch of a trainer: each has its turn.
  int source_of(int step, size_t trainer) const {
    return simulators[(static_cast<size_t>(step) * trainers.size() + trainer) % simulators.size()];
  }
};

/// Collective: exchanges the tasks of all processes.
Roles exchange_roles(lockstep::Group& all, bool trains) {
  const auto tasks = all.all_gather(torch::full({1}, trains ? 1 : 0)).wait();
  Roles roles;
  for (int rank = 0; rank < all.size(); ++rank) {
    (tasks[rank].item<int>() == 1 ? roles.trainers : roles.simulators).push_back(rank);
  }
  if (roles.simulators.empty()) {
    throw lockstep::ConfigError("simulation", "no process simulates; start 3 or more on a host");
  }
  return roles;
}

void send_batches(lockstep::Group& all, const Roles& roles) {
  for (int step = 0; step < kSteps; ++step) {
    for (size_t trainer = 0; trainer < roles.trainers.size(); ++trainer) {
      if (roles.source_of(step, trainer) == all.rank()) {
        all.send(simulate(), roles.trainers[trainer]).wait();
      }
    }
  }
}

void train(lockstep::Accelerator& accelerator, lockstep::Group& all, const Roles& roles) {
  torch::nn::Sequential net(torch::nn::Linear(1, 32), torch::nn::Tanh(), torch::nn::Linear(32, 1));
  auto [model, optimizer] = accelerator.prepare(net, optim::Adam(net->parameters(), {.lr = 1e-2}));
  at::Tensor loss;
  for (int step = 0; step < kSteps; ++step) {
    auto batch = torch::empty({kBatch, 2});
    all.recv(batch, roles.source_of(step, static_cast<size_t>(accelerator.process_index()))).wait();
    batch = batch.to(accelerator.device());
    loss = torch::mse_loss(model->forward(batch.slice(1, 0, 1)), batch.slice(1, 1, 2));
    accelerator.backward(loss);
    optimizer.step();
    optimizer.zero_grad();
  }
  loss = accelerator.reduce(loss.detach(), lockstep::ReduceOp::kAvg);
  if (accelerator.is_main_process()) {
    accelerator.print(
        std::to_string(roles.trainers.size()) + " processes trained with the samples of " +
        std::to_string(roles.simulators.size()) + ", loss " + std::to_string(loss.item<double>()));
  }
  accelerator.end_training();
}

int run() {
  // In a program that uses MPI, the rank is that of MPI_COMM_WORLD.
  const auto world = lockstep::world_from_environment(lockstep::Environment::process());
  data::set_seed(42, /*device_specific=*/true, world.rank);  // Each simulates other samples.
  const bool trains = world.local_rank < kTrainersOfAHost;

  lockstep::Group all = lockstep::connect(world);
  const Roles roles = exchange_roles(all, trains);
  // As MPI_Comm_split: all processes call it, and each gets the group of its task.
  lockstep::Group group = all.split(trains ? 0 : 1);
  if (!trains) {
    send_batches(all, roles);
    return 0;
  }
  lockstep::WorldSpec trainers = world;
  trainers.rank = group.rank();
  trainers.size = group.size();
  trainers.local_size = std::min(kTrainersOfAHost, world.local_size);
  lockstep::Accelerator accelerator({.expect_prepared_loader = false}, trainers, group);
  train(accelerator, all, roles);
  return 0;
}

}  // namespace

int main() {
  return lockstep::run_main(run);
}
