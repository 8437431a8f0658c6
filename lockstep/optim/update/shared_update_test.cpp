// SPDX-License-Identifier: Apache-2.0
// Shared parameters and state: bit-exact with a rank that has its own.
#include <memory>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/base/error.h"
#include "lockstep/comm/connect/test_connected_ranks.h"
#include "lockstep/optim/rules/adadelta.h"
#include "lockstep/optim/rules/adafactor.h"
#include "lockstep/optim/rules/adagrad.h"
#include "lockstep/optim/rules/adam.h"
#include "lockstep/optim/rules/adamax.h"
#include "lockstep/optim/rules/asgd.h"
#include "lockstep/optim/rules/lamb.h"
#include "lockstep/optim/rules/lion.h"
#include "lockstep/optim/rules/muon.h"
#include "lockstep/optim/rules/nadam.h"
#include "lockstep/optim/rules/radam.h"
#include "lockstep/optim/rules/rmsprop.h"
#include "lockstep/optim/rules/rprop.h"
#include "lockstep/optim/rules/sgd.h"
#include "lockstep/optim/test_parameters.h"
#include "lockstep/optim/test_training.h"
#include "lockstep/optim/update/shared_memory_strategy.h"

namespace lockstep::optim {
namespace {

using ::testing::HasSubstr;

/// Small ones, and one that is cut between ranks; rank 0's values.
Parameters some_parameters(int rank, at::ScalarType type) {
  Parameters parameters = make_parameters(type);
  parameters.push_back(
      (at::arange(41 * 103, type) * 0.37).sin().reshape({41, 103}).clone().requires_grad_());
  for (at::Tensor& parameter : parameters) {
    parameter.data().add_(rank);
  }
  return parameters;
}

void put_all_gradients(const Parameters& parameters, int64_t t) {
  const Parameters small(parameters.begin(), parameters.end() - 1);
  put_gradients(small, t);
  const at::Tensor& large = parameters.back();
  large.mutable_grad() =
      (at::arange(large.numel(), large.scalar_type()) * 0.7 + t).cos().reshape(large.sizes());
}

template <typename Optimizer>
void expect_shared_equals_own(const typename Optimizer::Options& options) {
  for (const at::ScalarType type : {at::kFloat, at::kDouble, at::kBFloat16}) {
    for (const int size : {1, 2, 3, 4}) {
      SCOPED_TRACE(std::string(c10::toString(type)) + ", " + std::to_string(size) + " ranks");
      const Parameters own = some_parameters(0, type);
      Optimizer alone(own, options);
      for (int64_t t = 0; t < 14; ++t) {
        put_all_gradients(own, t);
        alone.step();
      }
      shm_ranks(size, [&](Group group) {
        const Parameters shared = some_parameters(group.rank(), type);
        Optimizer optimizer(shared, options);
        optimizer.share(group);
        for (int64_t t = 0; t < 14; ++t) {
          put_all_gradients(shared, t);
          optimizer.step();
        }
        for (size_t k = 0; k < own.size(); ++k) {
          EXPECT_TRUE(at::equal(own[k], shared[k])) << "parameter " << k;
          const auto expected = alone.state_of(own[k]);
          const auto got = optimizer.state_of(shared[k]);
          EXPECT_EQ(got.step, expected.step);
          EXPECT_EQ(got.scalars, expected.scalars);
          for (size_t field = 0; field < expected.fields.size(); ++field) {
            ASSERT_EQ(got.fields[field].defined(), expected.fields[field].defined());
            if (got.fields[field].defined()) {
              EXPECT_TRUE(at::equal(got.fields[field], expected.fields[field]))
                  << "parameter " << k << ", field " << field;
            }
          }
        }
        group.barrier();
      });
    }
  }
}

TEST(SharedParameters, SgdIsBitExactWithUnsharedParameters) {
  expect_shared_equals_own<SGD>({.lr = 0.1});
  expect_shared_equals_own<SGD>({.lr = 0.1, .momentum = 0.9, .weight_decay = 0.01});
}

TEST(SharedParameters, AdamIsBitExactWithUnsharedParameters) {
  expect_shared_equals_own<AdamW>({.lr = 0.01});
  expect_shared_equals_own<Adam>({.lr = 0.01, .amsgrad = true});
}

TEST(SharedParameters, OtherRulesAreBitExactWithUnsharedParameters) {
  expect_shared_equals_own<Lion>({.lr = 0.01});
  expect_shared_equals_own<Adagrad>({.lr = 0.01});
  expect_shared_equals_own<RMSprop>({.lr = 0.01, .momentum = 0.5});
  expect_shared_equals_own<Adadelta>({});
  expect_shared_equals_own<Adamax>({.lr = 0.01});
  expect_shared_equals_own<NAdam>({.lr = 0.01});
  expect_shared_equals_own<RAdam>({.lr = 0.01});
  expect_shared_equals_own<ASGD>({.lr = 0.01, .t0 = 4});
  expect_shared_equals_own<Rprop>({.lr = 0.01});
}

TEST(SharedParameters, AreBitExactWithPrivateOnesForRulesOfFullParameters) {
  expect_shared_equals_own<LAMB>({.lr = 0.01});
  expect_shared_equals_own<Adafactor>({});
}

TEST(SharedParameters, MuonIsBitExactWithUnsharedParameters) {
  // Matrices: one rank orthogonalizes each. Others: each rank updates a range of them.
  const std::vector<std::vector<int64_t>> shapes = {{30, 20}, {8, 90}, {4, 3, 3, 3}, {41}, {7}};
  constexpr size_t kMatrices = 3;
  const auto make = [&](double first) {
    Parameters parameters;
    for (const auto& shape : shapes) {
      parameters.push_back((numbers(shape, 1, 5, 11, 4).to(at::kFloat) + first).requires_grad_());
    }
    return parameters;
  };
  const auto optimizer_of = [](const Parameters& parameters) {
    const Parameters matrices(parameters.begin(), parameters.begin() + kMatrices);
    const Parameters others(parameters.begin() + kMatrices, parameters.end());
    return Muon(std::vector<Muon::Group>{
        {matrices, {.lr = 0.02}}, {others, {.lr = 0.003, .use_muon = false}}});
  };
  const auto step = [](Muon& optimizer, const Parameters& parameters, int64_t t) {
    for (const at::Tensor& parameter : parameters) {
      parameter.mutable_grad() = numbers(parameter.sizes(), 13 * t, 7, 18, 8).to(at::kFloat);
    }
    optimizer.step();
  };
  const Parameters own = make(0);
  Muon alone = optimizer_of(own);
  for (int64_t t = 0; t < 6; ++t) {
    step(alone, own, t);
  }
  for (const int size : {2, 3}) {
    shm_ranks(size, [&](Group group) {
      const Parameters shared = make(group.rank());
      Muon optimizer = optimizer_of(shared);
      optimizer.share(group);
      for (int64_t t = 0; t < 6; ++t) {
        step(optimizer, shared, t);
      }
      for (size_t k = 0; k < own.size(); ++k) {
        EXPECT_TRUE(at::equal(own[k], shared[k])) << "parameter " << k;
      }
      group.barrier();
    });
  }
}

TEST(SharedParameters, MayBeSharedAfterPrivateSteps) {
  shm_ranks(2, [&](Group group) {
    const Parameters own = some_parameters(0, at::kFloat);
    const Parameters shared = some_parameters(0, at::kFloat);
    AdamW alone(own, {.lr = 0.01});
    AdamW optimizer(shared, {.lr = 0.01});
    for (int64_t t = 0; t < 9; ++t) {
      if (t == 4) {
        optimizer.share(group);
      }
      put_all_gradients(own, t);
      alone.step();
      put_all_gradients(shared, t);
      optimizer.step();
    }
    for (size_t k = 0; k < own.size(); ++k) {
      EXPECT_TRUE(at::equal(own[k], shared[k])) << "parameter " << k;
    }
    group.barrier();
  });
}

TEST(SharedParameters, MayBelongToSeveralGroups) {
  const Parameters own = some_parameters(0, at::kFloat);
  AdamW alone(own, {.lr = 0.01});
  for (int64_t t = 0; t < 6; ++t) {
    put_all_gradients(own, t);
    alone.step();
  }
  shm_ranks(4, [&](Group group) {
    Group half = group.split(group.rank() % 2, group.rank());
    Group again = group.split(0, -group.rank());  // All, in the other order.
    std::vector<Parameters> all;
    std::vector<std::unique_ptr<AdamW>> optimizers;
    for (const Group& sharers : {group, half, again, half}) {
      all.push_back(some_parameters(sharers.rank(), at::kFloat));
      optimizers.push_back(std::make_unique<AdamW>(all.back(), AdamWOptions{.lr = 0.01}));
      optimizers.back()->share(sharers);
    }
    for (int64_t t = 0; t < 6; ++t) {
      for (size_t i = 0; i < all.size(); ++i) {
        put_all_gradients(all[i], t);
        optimizers[i]->step();
      }
    }
    for (size_t i = 0; i < all.size(); ++i) {
      for (size_t k = 0; k < own.size(); ++k) {
        EXPECT_TRUE(at::equal(own[k], all[i][k])) << "optimizer " << i << ", parameter " << k;
      }
    }
    group.barrier();
  });
}

TEST(SharedParameters, AreOneMemory) {
  shm_ranks(3, [&](Group group) {
    const Parameters shared = some_parameters(group.rank(), at::kFloat);
    AdamW optimizer(shared, {.lr = 0.01});
    optimizer.share(group);
    group.barrier();
    if (group.rank() == 1) {
      shared[0].data().fill_(42);
    }
    group.barrier();
    EXPECT_EQ(shared[0].mean().item<double>(), 42);
    group.barrier();
  });
}

TEST(SharedParameters, AddedLaterAreSharedToo) {
  shm_ranks(2, [&](Group group) {
    AdamW optimizer(some_parameters(group.rank(), at::kFloat), {.lr = 0.01});
    optimizer.share(group);
    const at::Tensor later = at::full({100}, 1.0 + group.rank()).requires_grad_();
    optimizer.add_param_group({{later}, {.lr = 0.5}});
    EXPECT_EQ(later.mean().item<double>(), 1);
    later.mutable_grad() = at::ones({100});
    optimizer.step();
    const at::Tensor expected = at::full({100}, 1.0).requires_grad_();
    AdamW alone({expected}, {.lr = 0.5});
    expected.mutable_grad() = at::ones({100});
    alone.step();
    EXPECT_TRUE(at::equal(later, expected));
    group.barrier();
  });
}

TEST(SharedParameters, RefuseUnsupportedTransportsAndParameters) {
  gloo_ranks(2, [](Group group) {
    AdamW optimizer(make_parameters(), {});
    EXPECT_THAT(
        error_of([&] { optimizer.share(group); }), HasSubstr("got transport gloo, expected shm"));
  });
  shm_ranks(2, [](Group group) {
    const Parameters parameters = make_parameters();
    const at::Tensor view = parameters[0].detach();
    AdamW seen(parameters, {});
    EXPECT_THAT(
        error_of([&] { seen.share(group); }),
        HasSubstr("a parameter of shape [3, 5] cannot be moved to memory that ranks share"));

    Parameters moved = make_parameters();
    AdamW optimizer(moved, {});
    optimizer.share(group);
    put_gradients(moved, 0);
    moved[0].set_data(moved[0].detach().clone());
    EXPECT_THAT(error_of([&] { optimizer.step(); }), HasSubstr("has moved since"));
    group.barrier();
  });
}

TEST(ShareOf, EveryElementBelongsToOneRank) {
  for (const bool elementwise : {true, false}) {
    for (const int size : {1, 2, 3, 7}) {
      RuleCall call;
      for (const int64_t numel : {1, 63, 64, 65, 1000, 4096, 3}) {
        call.parameters.push_back(at::zeros({numel}));
        call.gradients.push_back(at::zeros({numel}));
        call.steps.push_back(1);
      }
      for (int rank = 0; rank < size; ++rank) {
        for (const at::Tensor& part : share_of(call, elementwise, rank, size).parameters) {
          part.add_(1);
        }
      }
      for (const at::Tensor& parameter : call.parameters) {
        EXPECT_TRUE(parameter.eq(1).all().item<bool>()) << size << " ranks, " << parameter.numel();
      }
    }
  }
}

}  // namespace
}  // namespace lockstep::optim
