// SPDX-License-Identifier: Apache-2.0
//
// Times collectives over MPI, like collectives_bench.cpp; bench/collectives.py compiles it with
// mpicxx.
#include <cstdint>
#include <cstdlib>
#include <mpi.h>
#include <utility>
#include <vector>

#include "bench/timing.h"

namespace {

double slowest(double value) {
  MPI_Allreduce(MPI_IN_PLACE, &value, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
  return value;
}

void barrier() {
  MPI_Barrier(MPI_COMM_WORLD);
}

}  // namespace

// Usage: collectives_mpi SECONDS BYTES...
int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  int rank = 0;
  int size = 1;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  const double seconds = std::atof(argv[1]);
  for (int i = 2; i < argc; ++i) {
    const long bytes = std::atol(argv[i]);
    const int count = static_cast<int>(bytes / 4);
    std::vector<float> full(static_cast<size_t>(count));
    std::vector<float> other(static_cast<size_t>(count));
    std::vector<float> part(static_cast<size_t>(count / size));
    const std::vector<std::pair<const char*, bench::Operation>> operations{
        {"all_reduce",
         [&] {
           MPI_Allreduce(MPI_IN_PLACE, full.data(), count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
         }},
        {"reduce_scatter",
         [&] {
           MPI_Reduce_scatter_block(
               full.data(), part.data(), count / size, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
         }},
        {"all_gather",
         [&] {
           MPI_Allgather(
               part.data(),
               count / size,
               MPI_FLOAT,
               full.data(),
               count / size,
               MPI_FLOAT,
               MPI_COMM_WORLD);
         }},
        {"all_to_all",
         [&] {
           MPI_Alltoall(
               full.data(),
               count / size,
               MPI_FLOAT,
               other.data(),
               count / size,
               MPI_FLOAT,
               MPI_COMM_WORLD);
         }},
        {"broadcast", [&] { MPI_Bcast(full.data(), count, MPI_FLOAT, 0, MPI_COMM_WORLD); }},
    };
    for (const auto& [name, operation] : operations) {
      const double us = bench::microseconds(operation, seconds, slowest, barrier);
      if (rank == 0) {
        bench::print_collective(name, bytes, us);
      }
    }
  }
  MPI_Finalize();
  return 0;
}
