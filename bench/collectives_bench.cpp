// SPDX-License-Identifier: Apache-2.0
//
// Runs one rank of bench/collectives.py: times each operation at each size; rank 0 prints a JSON
// line for each. Started under `lockstep launch`; LOCKSTEP_COMM chooses the transport.
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include "bench/timing.h"
#include "lockstep/comm/connect/connect.h"
#include "lockstep/comm/transport/reduce.h"
#include "lockstep/lockstep.h"

int main(int argc, char** argv) {
  return lockstep::run_main([&] {
    CLI::App app("one rank of bench/collectives.py");
    std::vector<int64_t> sizes{4096};
    double seconds = 0.05;
    app.add_option("--bytes", sizes);
    app.add_option("--seconds", seconds);
    CLI11_PARSE(app, argc, argv);

    const auto environment = lockstep::Environment::process();
    const auto world = lockstep::world_from_environment(environment);
    lockstep::Group group =
        lockstep::connect(world, lockstep::ConnectOptions::from_environment(environment));
    at::set_num_threads(1);
    const auto slowest = [&](double value) {
      return group.all_reduce(at::full({1}, value, at::kDouble), lockstep::ReduceOp::kMax)
          .wait()
          .item<double>();
    };
    for (const int64_t bytes : sizes) {
      const int64_t count = bytes / 4;
      const at::Tensor plain = at::zeros({count});
      const at::Tensor shared = group.empty({count}, plain.options()).zero_();
      const at::Tensor other = at::zeros({count});
      const at::Tensor part = at::zeros({count / group.size()});
      const std::vector<std::pair<const char*, bench::Operation>> operations{
          {"all_reduce", [&] { group.all_reduce(plain).wait(); }},
          {"all_reduce_in_place", [&] { group.all_reduce(shared).wait(); }},
          {"all_reduce_bf16",
           [&, half = at::zeros({bytes / 2}, at::kBFloat16)] { group.all_reduce(half).wait(); }},
          {"reduce_scatter", [&] { group.reduce_scatter_into(part, plain).wait(); }},
          {"all_gather", [&] { group.all_gather_into(other, part).wait(); }},
          {"all_to_all", [&] { group.all_to_all_into(other, plain).wait(); }},
          {"broadcast", [&] { group.broadcast(plain).wait(); }},
          {"private_reduction",
           [&, a = at::zeros({count / group.size()}), b = at::zeros({count / group.size()})] {
             // One rank's part of an all-reduce in place, on its own memory.
             const std::vector<const void*> sources{a.const_data_ptr(), b.const_data_ptr()};
             const std::vector<void*> targets{a.mutable_data_ptr(), b.mutable_data_ptr()};
             lockstep::comm::reduce(
                 at::kFloat, lockstep::ReduceOp::kSum, sources, targets, a.numel());
           }},
          {"memcpy", [&, to = at::zeros({count})] { to.copy_(plain); }},
      };
      for (const auto& [name, operation] : operations) {
        const double us =
            bench::microseconds(operation, seconds, slowest, [&] { group.barrier(); });
        if (group.rank() == 0) {
          bench::print_collective(name, bytes, us);
        }
      }
    }
    return 0;
  });
}
