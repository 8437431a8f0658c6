// SPDX-License-Identifier: Apache-2.0
#include "lockstep/comm/transport/reduce.h"

#include <limits>
#include <vector>

#include <gtest/gtest.h>

#include <ATen/ATen.h>

#include "lockstep/comm/thread/reference_collectives.h"

namespace lockstep::comm {
namespace {

at::Tensor numbers(int source, int64_t count, at::ScalarType dtype) {
  const at::Tensor values = at::sin(at::arange(count, at::kDouble) * (source + 1.37)) * 40;
  return (dtype == at::kByte ? values.abs() : values).to(dtype);
}

/// Returns the result of the slow reference, in the same order.
at::Tensor expected(const std::vector<at::Tensor>& inputs, ReduceOp op) {
  return reduce_in_order(inputs, op).to(inputs[0].scalar_type());
}

at::Tensor reduced(const std::vector<at::Tensor>& inputs, ReduceOp op, bool in_place) {
  std::vector<at::Tensor> copies;
  std::vector<const void*> sources;
  for (const at::Tensor& input : inputs) {
    copies.push_back(input.clone());
    sources.push_back(copies.back().const_data_ptr());
  }
  const at::Tensor target = at::empty_like(inputs[0]);
  std::vector<void*> targets{target.mutable_data_ptr()};
  if (in_place) {
    for (const at::Tensor& copy : copies) {
      targets.push_back(copy.mutable_data_ptr());
    }
  }
  reduce(inputs[0].scalar_type(), op, sources, targets, target.numel());
  for (size_t i = 0; in_place && i < copies.size(); ++i) {
    EXPECT_TRUE(at::equal(copies[i], target)) << "source " << i << " is a target too";
  }
  return target;
}

TEST(Reduce, HasTheBitsOfTheReferenceForEveryDtypeReductionAndLength) {
  for (const auto dtype :
       {at::kFloat,
        at::kDouble,
        at::kHalf,
        at::kBFloat16,
        at::kByte,
        at::kChar,
        at::kInt,
        at::kLong}) {
    for (const auto op :
         {ReduceOp::kSum, ReduceOp::kAvg, ReduceOp::kMin, ReduceOp::kMax, ReduceOp::kProduct}) {
      if (op == ReduceOp::kAvg && !at::isFloatingType(dtype)) {
        continue;  // Refused by Group.
      }
      for (const int64_t count : {1, 7, 64, 1023, 1024, 1025, 5000}) {
        for (const int ranks : {1, 2, 3, 5}) {
          std::vector<at::Tensor> inputs;
          for (int rank = 0; rank < ranks; ++rank) {
            inputs.push_back(numbers(rank, count, dtype));
          }
          EXPECT_TRUE(at::equal(reduced(inputs, op, ranks % 2 == 0), expected(inputs, op)))
              << dtype << " " << name_of(op) << " of " << count << " from " << ranks;
        }
      }
    }
  }
}

TEST(Reduce, KeepsNaN) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (const auto dtype : {at::kFloat, at::kHalf, at::kBFloat16}) {
    for (const auto op : {ReduceOp::kSum, ReduceOp::kMin, ReduceOp::kMax}) {
      for (const bool first : {true, false}) {
        const at::Tensor one = at::full({40}, first ? nan : 1.0F).to(dtype);
        const at::Tensor other = at::full({40}, first ? 1.0F : nan).to(dtype);
        EXPECT_TRUE(reduced({one, other}, op, false).isnan().all().item<bool>())
            << dtype << " " << name_of(op);
      }
    }
  }
}

TEST(Reduce, OverflowsAsTheReferenceDoes) {
  const at::Tensor large = at::full({20}, 60000.0F).to(at::kHalf);
  EXPECT_TRUE(reduced({large, large}, ReduceOp::kSum, false).isinf().all().item<bool>());
  // The sum is held in float32, so the average is not lost.
  EXPECT_TRUE(at::equal(reduced({large, large}, ReduceOp::kAvg, false), large));
  const at::Tensor most = at::full({20}, std::numeric_limits<int32_t>::max(), at::kInt);
  EXPECT_TRUE(
      at::equal(reduced({most, most}, ReduceOp::kSum, false), at::full({20}, -2, at::kInt)));
}

}  // namespace
}  // namespace lockstep::comm
