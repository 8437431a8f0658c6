// SPDX-License-Identifier: Apache-2.0
#include <array>

#include <fmt/format.h>

#include <ATen/ATen.h>
#include <ATen/DeviceAccelerator.h>

#include "cli/selftest/check.h"
#include "lockstep/base/error.h"

namespace lockstep::selftest {
namespace {

constexpr std::array kDtypes = {
    at::kFloat, at::kDouble, at::kHalf, at::kBFloat16, at::kInt, at::kLong, at::kByte, at::kChar};
constexpr std::array kReductions = {
    ReduceOp::kSum, ReduceOp::kAvg, ReduceOp::kMin, ReduceOp::kMax, ReduceOp::kProduct};
constexpr int64_t kRowWidth = 3;
constexpr double kLowPrecision = 1e-2;  // For averages in bf16.

std::string title(const std::string& what, at::ScalarType dtype) {
  return fmt::format("{} of {}", what, at::toString(dtype));
}

/// Row i is 2 on rank i and 1 on all others: no reduction of it overflows eight bits.
at::Tensor own_rows(const Group& group, at::ScalarType dtype) {
  at::Tensor rows = at::ones({group.size(), kRowWidth}, dtype);
  rows[group.rank()].fill_(2);
  return rows;
}

/// Returns the reduction of any row of own_rows() over the ranks.
double reduced(ReduceOp op, int size) {
  switch (op) {
    case ReduceOp::kSum:
      return size + 1;
    case ReduceOp::kAvg:
      return static_cast<double>(size + 1) / size;
    case ReduceOp::kMin:
      return size == 1 ? 2 : 1;
    default:
      return 2;
  }
}

/// Calls `body` for each dtype and each reduction of it.
template <typename Body>
void for_each_reduction(const Body& body) {
  for (const at::ScalarType dtype : kDtypes) {
    for (const ReduceOp op : kReductions) {
      if (op != ReduceOp::kAvg || at::isFloatingType(dtype)) {
        body(dtype, op);
      }
    }
  }
}

void expect_reduced(
    Expect& expect, const std::string& what, const at::Tensor& got, ReduceOp op, int size) {
  const at::Tensor expected = at::full_like(got, reduced(op, size));
  if (op == ReduceOp::kAvg) {
    expect.near(what, got, expected, kLowPrecision);
  } else {
    expect.equal(what, got, expected);
  }
}

void all_reduce(Rank& rank, Expect& expect) {
  Group& group = rank.group;
  for_each_reduction([&](at::ScalarType dtype, ReduceOp op) {
    const at::Tensor got = group.all_reduce(own_rows(group, dtype), op).wait();
    const std::string what = fmt::format("all_reduce({})", name_of(op));
    expect_reduced(expect, title(what, dtype), got, op, group.size());
  });
}

void reduce_scatter(Rank& rank, Expect& expect) {
  Group& group = rank.group;
  for_each_reduction([&](at::ScalarType dtype, ReduceOp op) {
    const at::Tensor got = group.reduce_scatter(own_rows(group, dtype), op).wait();
    const std::string what = fmt::format("reduce_scatter({})", name_of(op));
    expect.equal(
        title(what + "'s shape", dtype),
        fmt::format("{}x{}", got.size(0), got.size(1)),
        fmt::format("1x{}", kRowWidth));
    expect_reduced(expect, title(what, dtype), got, op, group.size());
  });
}

/// Returns numbers that identify the rank and the row.
at::Tensor signed_rows(int64_t rank, int64_t rows, at::ScalarType dtype) {
  return (at::arange(rows, at::kLong).reshape({rows, 1}).expand({rows, kRowWidth}) + rank % 100)
      .to(dtype)
      .contiguous();
}

at::Tensor of_all_ranks(const Group& group, int64_t rows, at::ScalarType dtype) {
  std::vector<at::Tensor> parts;
  for (int rank = 0; rank < group.size(); ++rank) {
    parts.push_back(signed_rows(rank, rows, dtype));
  }
  return at::cat(parts);
}

void all_gather(Rank& rank, Expect& expect) {
  Group& group = rank.group;
  for (const at::ScalarType dtype : kDtypes) {
    expect.equal(
        title("all_gather", dtype),
        group.all_gather(signed_rows(group.rank(), 2, dtype)).wait(),
        of_all_ranks(group, 2, dtype));
  }
}

void gather(Rank& rank, Expect& expect) {
  Group& group = rank.group;
  for (const at::ScalarType dtype : kDtypes) {
    const int root = group.size() - 1;
    const at::Tensor got = group.gather(signed_rows(group.rank(), 2, dtype), root).wait();
    if (group.rank() == root) {
      expect.equal(title("gather", dtype), got, of_all_ranks(group, 2, dtype));
    }
  }
}

void scatter(Rank& rank, Expect& expect) {
  Group& group = rank.group;
  for (const at::ScalarType dtype : kDtypes) {
    const at::Tensor input = of_all_ranks(group, 2, dtype);
    const at::Tensor got =
        group.scatter(at::zeros({2, kRowWidth}, dtype), input, group.size() - 1).wait();
    expect.equal(title("scatter", dtype), got, signed_rows(group.rank(), 2, dtype));
  }
}

void broadcast(Rank& rank, Expect& expect) {
  Group& group = rank.group;
  for (const at::ScalarType dtype : kDtypes) {
    for (int root = 0; root < group.size(); ++root) {
      expect.equal(
          title(fmt::format("broadcast from rank {}", root), dtype),
          group.broadcast(signed_rows(group.rank(), 2, dtype), root).wait(),
          signed_rows(root, 2, dtype));
    }
  }
}

void all_to_all(Rank& rank, Expect& expect) {
  Group& group = rank.group;
  for (const at::ScalarType dtype : kDtypes) {
    // Row j is sent to rank j, and contains j + the sender.
    const at::Tensor got = group.all_to_all(signed_rows(group.rank(), group.size(), dtype)).wait();
    expect.equal(title("all_to_all", dtype), got, signed_rows(group.rank(), group.size(), dtype));
  }
}

void send_and_recv(Rank& rank, Expect& expect) {
  Group& group = rank.group;
  const int size = group.size();
  if (size == 1) {
    return;
  }
  for (const at::ScalarType dtype : kDtypes) {
    // Around the ring; rank 0 sends first, which prevents a deadlock.
    const int next = (group.rank() + 1) % size;
    const int before = (group.rank() + size - 1) % size;
    at::Tensor got = at::zeros({2, kRowWidth}, dtype);
    if (group.rank() == 0) {
      group.send(signed_rows(0, 2, dtype), next).wait();
      group.recv(got, before).wait();
    } else {
      group.recv(got, before).wait();
      group.send(signed_rows(group.rank(), 2, dtype), next).wait();
    }
    expect.equal(
        title(fmt::format("recv from rank {}", before), dtype), got, signed_rows(before, 2, dtype));
  }
}

void split(Rank& rank, Expect& expect) {
  Group& group = rank.group;
  Group part = group.split(group.rank() % 2, -group.rank());
  const int odd = group.rank() % 2;
  const int members = (group.size() + 1 - odd) / 2;
  expect.equal("split's size", std::to_string(part.size()), std::to_string(members));
  expect.equal(
      "split's rank", std::to_string(part.rank()), std::to_string(members - 1 - group.rank() / 2));
  const at::Tensor got = part.all_reduce(at::ones({2}, at::kLong)).wait();
  expect.equal("all_reduce within a split", got, at::full({2}, members, at::kLong));
}

void barrier(Rank& rank, Expect& expect) {
  for (int i = 0; i < 10; ++i) {
    rank.group.barrier();
  }
  expect.is_true("barrier returned", true);
}

/// Checks a tensor that every transport sends in several messages.
void large(Rank& rank, Expect& expect) {
  constexpr int64_t kNumbers = int64_t{4} << 20;
  const at::Tensor got = rank.group.all_reduce(at::ones({kNumbers}, at::kFloat)).wait();
  expect.equal("all_reduce of 16 MiB", got, at::full({kNumbers}, rank.group.size(), at::kFloat));
}

/// Compares results on this rank's GPU with those on the CPU.
void device(Rank& rank, Expect& expect) {
  Group& group = rank.group;
  const int index = rank.world.local_rank % at::accelerator::deviceCount();
  const at::Device gpu(*at::getAccelerator(), static_cast<at::DeviceIndex>(index));
  const at::Tensor own = signed_rows(group.rank(), 2, at::kFloat);
  const at::Tensor summed = group.all_reduce(own.to(gpu)).wait();
  expect.equal("all_reduce on a device", summed.cpu(), group.all_reduce(own.clone()).wait());
  const at::Tensor all = group.all_gather(own.to(gpu)).wait();
  expect.equal("all_gather on a device", all.cpu(), of_all_ranks(group, 2, at::kFloat));
  const at::Tensor first = group.broadcast(own.to(gpu)).wait();
  expect.equal("broadcast on a device", first.cpu(), signed_rows(0, 2, at::kFloat));
}

/// Checks that different shapes are an error, in a separate group, which is unusable afterwards.
void mismatch(Rank& rank, Expect& expect) {
  Group group = rank.group.split(0, rank.group.rank());
  if (group.size() == 1) {
    return;
  }
  std::string message = "nothing";
  try {
    group.all_reduce(at::ones({group.rank() == 0 ? 2 : 3}, at::kFloat)).wait();
  } catch (const CommError& error) {
    message = error.what();
  }
  expect.is_true(
      "different shapes are an error that names both (the error: " + message + ")",
      message.find("[2]") != std::string::npos && message.find("[3]") != std::string::npos);
}

}  // namespace

std::vector<Check> collective_checks() {
  constexpr const char* kReduced =
      "sum, avg, min, max, product of float32, float64, float16, bfloat16, int32, int64, uint8, "
      "int8";
  constexpr const char* kMoved =
      "of float32, float64, float16, bfloat16, int32, int64, uint8, int8";
  std::vector<Check> checks = {
      {"barrier", "ten barriers", barrier},
      {"all_reduce", kReduced, all_reduce},
      {"reduce_scatter", kReduced, reduce_scatter},
      {"all_gather", kMoved, all_gather},
      {"gather", kMoved, gather},
      {"scatter", kMoved, scatter},
      {"broadcast", std::string("from every rank ") + kMoved, broadcast},
      {"all_to_all", kMoved, all_to_all},
      {"send_recv", std::string("around the ring ") + kMoved, send_and_recv},
      {"split", "into even and odd ranks", split},
      {"large", "an all_reduce of 16 MiB", large},
      {"mismatch", "different shapes are an error that names both", mismatch},
  };
  if (at::getAccelerator() && at::accelerator::deviceCount() > 0) {
    checks.push_back({"device", "all_reduce, all_gather, broadcast on each rank's GPU", device});
  }
  return checks;
}

}  // namespace lockstep::selftest
