// SPDX-License-Identifier: Apache-2.0
// fp32 parameters that are sent in 16 bits, and so are their gradients.
#include <cmath>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>

#include "lockstep/base/error.h"
#include "lockstep/base/test_folder.h"
#include "lockstep/comm/thread/ranks.h"
#include "lockstep/zero/test_counting_transport.h"
#include "lockstep/zero/test_sharding.h"
#include "tests/nets.h"

namespace lockstep::zero {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

constexpr int64_t kBiasedWidth = 64;

/// Linear layers, whose weights are sent in 16 bits, and whose biases are not.
struct BiasedNetImpl : test::TanhStackImpl {
  BiasedNetImpl() : TanhStackImpl(3, kBiasedWidth) {}
};
TORCH_MODULE(BiasedNet);

struct CommSetup {
  ParamPlacement placement = ParamPlacement::kSharded;
  std::optional<at::ScalarType> comm_dtype = at::kBFloat16;
  PlusPlusOptions plus_plus = {};
  OffloadParam offload = {};
  bool gradients_only = false;
  int64_t max_live_elements = 1;
};

std::shared_ptr<Sharding> comm_dtype_sharding(
    const BiasedNet& net, const Group& group, const CommSetup& setup) {
  ShardingOptions options{
      .cap_bytes = 1,  // One bucket a parameter.
      .first_cap_bytes = 1,
      .placement = setup.placement,
      .coordinator = {.max_live_elements = setup.max_live_elements, .prefetch = false},
      .plus_plus = setup.plus_plus,
      .offload = setup.offload,
      .comm_dtypes_for_gradients_only = setup.gradients_only};
  if (setup.comm_dtype) {
    options.comm_dtypes.dtype = *setup.comm_dtype;
    for (const NamedTensor& item : named(*net)) {
      if (item.tensor.dim() == 2) {
        options.comm_dtypes.parameters.insert(item.tensor.unsafeGetTensorImpl());
      }
    }
  }
  return make_sharding(named(*net), group, options);
}

at::Tensor loss_of(BiasedNet& net, int rank, int step) {
  const at::Tensor at = at::arange(8 * kBiasedWidth, at::kFloat).reshape({8, kBiasedWidth});
  const at::Tensor x = at::cos(at * (0.37 + 0.11 * rank) + step % 3).requires_grad_();
  return (net->forward(x) - x.detach().roll(1, 1) / 2).square().mean();
}

at::Tensor rounded(const at::Tensor& exact, at::ScalarType dtype = at::kBFloat16) {
  return exact.detach().to(dtype).to(at::kFloat);
}

/// Bytes of a step of two ranks, by what they were for.
struct Sent {
  int64_t gradients_wide, gradients_narrow, parameters_wide, parameters_narrow;
};

Sent sent_in_a_step(const CommSetup& setup, at::ScalarType narrow) {
  HostTraffic traffic(1);
  ranks(2, [&](Group group) {
    BiasedNet net;
    const auto sharding = comm_dtype_sharding(net, counted(group, traffic), setup);
    group.barrier();
    if (group.rank() == 0) {
      traffic.reset();
    }
    group.barrier();
    run_backward(*sharding, loss_of(net, group.rank(), 0));
    update(*sharding, 0.1);
  });
  using comm::Op;
  return {
      traffic.of(Op::kReduceScatter, at::kFloat),
      traffic.of(Op::kReduceScatter, narrow),
      traffic.of(Op::kAllGather, at::kFloat),
      traffic.of(Op::kAllGather, narrow)};
}

TEST(CommDtypes, HalvesTheBytesOfListedParametersOnly) {
  constexpr int64_t kWeightCount = 3 * kBiasedWidth * kBiasedWidth;
  constexpr int64_t kBiases = 3 * 128;  // A shard has 64 elements or more.
  for (const at::ScalarType dtype : {at::kBFloat16, at::kHalf}) {
    for (const ParamPlacement placement : {ParamPlacement::kReplicated, ParamPlacement::kSharded}) {
      const Sent wide = sent_in_a_step({.placement = placement, .comm_dtype = std::nullopt}, dtype);
      EXPECT_EQ(wide.gradients_wide, 4 * (kWeightCount + kBiases));
      EXPECT_EQ(wide.gradients_narrow + wide.parameters_narrow, 0);
      const Sent sent = sent_in_a_step({.placement = placement, .comm_dtype = dtype}, dtype);
      EXPECT_EQ(sent.gradients_narrow, 2 * kWeightCount);
      EXPECT_EQ(sent.gradients_wide, 4 * kBiases);
      EXPECT_EQ(2 * sent.parameters_narrow + sent.parameters_wide, wide.parameters_wide);
      if (placement == ParamPlacement::kReplicated) {
        EXPECT_EQ(sent.parameters_narrow, 0) << "updated parameters come exact";
      } else {
        EXPECT_GT(sent.parameters_narrow, 2 * kWeightCount)
            << "for forward, and again for backward";
        EXPECT_LT(sent.parameters_wide, sent.parameters_narrow / 10);
      }
    }
  }
}

TEST(CommDtypes, MayBeForGradientsOnly) {
  for (const ParamPlacement placement : {ParamPlacement::kReplicated, ParamPlacement::kSharded}) {
    const CommSetup wide{.placement = placement, .comm_dtype = std::nullopt};
    CommSetup setup{.placement = placement, .gradients_only = true};
    const Sent sent = sent_in_a_step(setup, at::kBFloat16);
    EXPECT_GT(sent.gradients_narrow, 0);
    EXPECT_EQ(sent.parameters_narrow, 0);
    EXPECT_EQ(sent.parameters_wide, sent_in_a_step(wide, at::kBFloat16).parameters_wide);
  }
}

TEST(CommDtypes, AllRanksComputeWithRoundedParametersAndShardsStayExact) {
  for (const at::ScalarType dtype : {at::kBFloat16, at::kHalf}) {
    ranks(3, [dtype](Group group) {
      BiasedNet alone;
      BiasedNet net;
      const auto sharding = comm_dtype_sharding(net, group, {.comm_dtype = dtype});
      run_backward(*sharding, loss_of(net, group.rank(), 0));
      update(*sharding, 0);
      for (size_t layer = 0; layer < 3; ++layer) {
        EXPECT_TRUE(at::equal(net->bias(layer), alone->bias(layer)));
        EXPECT_EQ(net->weight(layer).scalar_type(), at::kFloat);
        EXPECT_TRUE(at::equal(net->weight(layer), rounded(alone->weight(layer), dtype)));
        EXPECT_FALSE(at::equal(net->weight(layer), alone->weight(layer)));
        const ExactValues exact(sharding->coordinator());
        EXPECT_TRUE(at::equal(net->weight(layer), alone->weight(layer)));
      }
    });
  }
}

/// This rank's parts after some steps, between which somebody may look at exact values.
std::vector<at::Tensor> parts_after_steps(Group& group, const CommSetup& setup, bool looks) {
  BiasedNet net;
  const auto sharding = comm_dtype_sharding(net, group, setup);
  for (int step = 0; step < 3; ++step) {
    if (looks) {
      const ExactValues exact(sharding->coordinator());
      const Gathered held({net->weight(0)}, /*writes=*/false);
    }
    run_backward(*sharding, loss_of(net, group.rank(), step));
    update(*sharding, 0.5);
  }
  std::vector<at::Tensor> parts;
  for (const at::Tensor& shard_slice : sharding->slices().of(net->parameters())) {
    parts.push_back(shard_slice.detach().clone());
  }
  return parts;
}

TEST(CommDtypes, TrainingDoesNotUseExactValuesThatWereOnlyRead) {
  constexpr int64_t kAllElements = 1 << 20;  // What was looked at is still here in forward.
  const CommSetup in_16_bits{.max_live_elements = kAllElements};
  const CommSetup in_8_bits{
      .comm_dtype = std::nullopt,
      .plus_plus = {.quantized_weights = true},
      .max_live_elements = kAllElements};
  for (const CommSetup& setup : {in_16_bits, in_8_bits}) {
    ranks(2, [&](Group group) {
      const auto expected = parts_after_steps(group, setup, /*looks=*/false);
      const auto parts = parts_after_steps(group, setup, /*looks=*/true);
      ASSERT_EQ(parts.size(), expected.size());
      for (size_t i = 0; i < parts.size(); ++i) {
        EXPECT_TRUE(at::equal(parts[i], expected[i])) << i;
      }
    });
  }
}

TEST(CommDtypes, AnExactScopeWithinAnotherDoesNotEndIt) {
  ranks(2, [](Group group) {
    BiasedNet alone;
    BiasedNet net;
    const auto sharding = comm_dtype_sharding(net, group, {});
    const ExactValues outer(sharding->coordinator());
    { const ExactValues inner(sharding->coordinator()); }
    EXPECT_TRUE(at::equal(net->weight(0), alone->weight(0)));
  });
}

/// Rank 1 is through with them, and wants the next forward's, while rank 0 still looks around.
TEST(CommDtypes, ExactValuesStayExactWhileAnotherRankTrains) {
  ranks(2, [](Group group) {
    BiasedNet alone;
    BiasedNet net;
    const auto sharding = comm_dtype_sharding(net, group, {});
    if (group.rank() == 0) {
      const ExactValues exact(sharding->coordinator());
      const Gathered held({net->weight(0)}, /*writes=*/false);
      net->weight(1).norm();  // A round, which brings what rank 1 waits for.
      EXPECT_TRUE(at::equal(net->weight(0), alone->weight(0)));
    } else {
      {
        const ExactValues exact(sharding->coordinator());
        const Gathered held({net->weight(0)}, /*writes=*/false);
      }
      EXPECT_TRUE(at::equal(net->weight(0), rounded(alone->weight(0))));
    }
    sharding->coordinator()->wait_for_all();
  });
}

TEST(CommDtypes, ReplicatedParametersStayExact) {
  ranks(2, [](Group group) {
    BiasedNet alone;
    BiasedNet net;
    const auto sharding =
        comm_dtype_sharding(net, group, {.placement = ParamPlacement::kReplicated});
    run_backward(*sharding, loss_of(net, group.rank(), 0));
    update(*sharding, 0);
    for (size_t i = 0; i < alone->parameters().size(); ++i) {
      EXPECT_TRUE(at::equal(net->parameters()[i], alone->parameters()[i]));
    }
  });
}

TEST(CommDtypes, WritingToAPartLeavesTheRestExact) {
  const TestFolder folder;
  const OffloadParam in_files{
      .device = OffloadDevice::kNvme, .nvme_path = folder.path(), .max_in_cpu = 0};
  for (const OffloadParam& offload : {OffloadParam(), in_files}) {
    ranks(2, [&](Group group) {
      BiasedNet alone;
      BiasedNet net;
      const auto sharding = comm_dtype_sharding(net, group, {.offload = offload});
      at::Tensor expected = alone->weight(1).detach().clone();
      {
        const torch::NoGradGuard no_grad;
        net->weight(1).narrow(0, 3, 1).fill_(0.3);
        expected.narrow(0, 3, 1).fill_(0.3);
      }
      loss_of(net, group.rank(), 0);  // It goes, and comes again.
      EXPECT_TRUE(at::equal(net->weight(1), rounded(expected)));
      const ExactValues exact(sharding->coordinator());
      EXPECT_TRUE(at::equal(net->weight(1), expected));
    });
  }
}

TEST(CommDtypes, AveragesAreRoundedOnceAndAddUpInFp32) {
  for (const ParamPlacement placement : {ParamPlacement::kReplicated, ParamPlacement::kSharded}) {
    ranks(2, [placement](Group group) {
      BiasedNet net;
      const auto sharding = comm_dtype_sharding(net, group, {.placement = placement});
      const auto expect = [&](const at::Tensor& parameter, double gradient) {
        for (const at::Tensor& shard_slice : sharding->slices().of({parameter})) {
          ASSERT_EQ(shard_slice.grad().scalar_type(), at::kFloat);
          EXPECT_TRUE(
              at::equal(shard_slice.grad(), at::full(shard_slice.sizes(), gradient, at::kFloat)));
        }
      };
      const auto backward = [&](double factor) {
        run_backward(*sharding, (net->weight(0).sum() + net->bias(0).sum()) * factor);
      };
      // 1 and 1 + 2^-7, next to each other in bf16: the mean is a tie, and goes to the even one.
      backward(group.rank() == 0 ? 1 : 1 + 1.0 / 128);
      expect(net->weight(0), 1);
      expect(net->bias(0), 1 + 1.0 / 256);
      backward(4096);
      expect(net->weight(0), 4097);
      for (const at::Tensor& shard_slice : sharding->slices().of({net->weight(1)})) {
        EXPECT_FALSE(shard_slice.grad().defined()) << "took no part anywhere";
      }
    });
  }
}

TEST(CommDtypes, ValuesBeyondFp16AreInfiniteOnAllRanks) {
  for (const ParamPlacement placement : {ParamPlacement::kReplicated, ParamPlacement::kSharded}) {
    ranks(2, [placement](Group group) {
      BiasedNet net;
      const auto sharding =
          comm_dtype_sharding(net, group, {.placement = placement, .comm_dtype = at::kHalf});
      run_backward(*sharding, net->weight(0).sum() * (group.rank() == 0 ? 1e6 : 1));
      for (const at::Tensor& shard_slice : sharding->slices().of({net->weight(0)})) {
        EXPECT_TRUE(shard_slice.grad().isinf().all().item<bool>());
      }
    });
  }
}

/// Mean losses over four ranks of some steps.
std::vector<double> comm_dtype_losses(const CommSetup& setup) {
  constexpr int kSteps = 30;
  std::vector<double> losses(kSteps, 0);
  std::mutex mutex;
  ranks(4, [&](Group group) {
    BiasedNet net;
    const auto sharding = comm_dtype_sharding(net, group, setup);
    for (int step = 0; step < kSteps; ++step) {
      const at::Tensor loss = loss_of(net, group.rank(), step);
      {
        const std::lock_guard<std::mutex> lock(mutex);
        losses[static_cast<size_t>(step)] += loss.item<double>() / 4;
      }
      run_backward(*sharding, loss);
      update(*sharding, 0.5);
    }
    for (const at::Tensor& parameter : net->parameters()) {
      const at::Tensor here = parameter.detach().clone();
      EXPECT_TRUE(at::equal(here, group.broadcast(here.clone()).wait())) << "equal bits";
    }
  });
  return losses;
}

TEST(CommDtypes, LossesAreCloseToThoseOfFp32) {
  for (const ParamPlacement placement : {ParamPlacement::kReplicated, ParamPlacement::kSharded}) {
    const std::vector<double> expected =
        comm_dtype_losses({.placement = placement, .comm_dtype = std::nullopt});
    EXPECT_LT(expected.back(), 0.8 * expected.front()) << "or equal losses say nothing";
    for (const at::ScalarType dtype : {at::kBFloat16, at::kHalf}) {
      const std::vector<double> losses =
          comm_dtype_losses({.placement = placement, .comm_dtype = dtype});
      for (size_t step = 0; step < losses.size(); ++step) {
        EXPECT_NEAR(losses[step], expected[step], 0.02 * expected[0]) << step;
      }
      EXPECT_NE(losses.back(), expected.back()) << "nothing was rounded";
    }
  }
}

TEST(CommDtypes, SecondaryShardsAreIn16BitsAndBitExact) {
  const PlusPlusOptions secondaries{.hpz_partition_size = 2};
  const std::vector<double> losses = comm_dtype_losses({});
  const std::vector<double> with_copies = comm_dtype_losses({.plus_plus = secondaries});
  for (size_t step = 0; step < losses.size(); ++step) {
    // The ranks' losses add up in any order.
    EXPECT_NEAR(with_copies[step], losses[step], 1e-12) << step;
  }
  ranks(4, [&](Group group) {
    BiasedNet net;
    const auto sharding = comm_dtype_sharding(net, group, {.plus_plus = secondaries});
    run_backward(*sharding, loss_of(net, group.rank(), 0));
    EXPECT_GT(sharding->coordinator()->secondary_gathers(), 0);
    int64_t narrow_bytes = 0;
    for (const at::Tensor& tensor : sharding->memory().parameters) {
      const bool is_narrow = tensor.scalar_type() == at::kBFloat16;
      narrow_bytes += is_narrow ? static_cast<int64_t>(tensor.nbytes()) : 0;
    }
    EXPECT_EQ(narrow_bytes, 3 * kBiasedWidth * kBiasedWidth / 2 * 2);
  });
}

TEST(CommDtypes, OneRankSendsAndRoundsNothing) {
  for (const ParamPlacement placement : {ParamPlacement::kReplicated, ParamPlacement::kSharded}) {
    ranks(1, [placement](Group group) {
      BiasedNet alone;
      BiasedNet net;
      const auto sharding = comm_dtype_sharding(net, group, {.placement = placement});
      run_backward(*sharding, loss_of(net, 0, 0));
      loss_of(alone, 0, 0).backward();
      EXPECT_TRUE(at::equal(net->weight(0), alone->weight(0)));
      EXPECT_TRUE(at::equal(
          sharding->slices().of({net->weight(0)}).at(0).grad(),
          alone->weight(0).grad().reshape({-1})));
    });
  }
}

TEST(CommDtypes, RefusesValuesThatZeroPlusPlusQuantizes) {
  ranks(2, [](Group group) {
    for (const PlusPlusOptions& plus_plus :
         {PlusPlusOptions{.quantized_weights = true},
          PlusPlusOptions{.quantized_gradients = true, .host_size = 2}}) {
      EXPECT_THAT(
          [&] { comm_dtype_sharding(BiasedNet(), group, {.plus_plus = plus_plus}); },
          ThrowsMessage<ConfigError>(
              HasSubstr("cannot be combined with a 16-bit communication dtype")));
    }
  });
}

}  // namespace
}  // namespace lockstep::zero
