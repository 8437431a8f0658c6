// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <fstream>
#include <functional>
#include <limits>
#include <stdexcept>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <ATen/ATen.h>

#include "lockstep/comm/thread/ranks.h"
#include "lockstep/sync/backward_hooks.h"
#include "lockstep/sync/comm_hook/low_rank.h"
#include "lockstep/sync/comm_hook/test_hooks.h"
#include "lockstep/sync/data_parallel.h"
#include "lockstep/sync/test_gradients.h"

namespace lockstep {
namespace {

/// A model that is nothing but parameters whose gradients the test chooses.
struct Given {
  NamedTensors parameters;

  explicit Given(
      const std::vector<std::vector<int64_t>>& shapes, at::ScalarType type = at::kFloat) {
    for (size_t i = 0; i < shapes.size(); ++i) {
      parameters.push_back({"w" + std::to_string(i), at::zeros(shapes[i], type).requires_grad_()});
    }
  }
  /// An undefined gradient: the parameter takes no part.
  void backward(DataParallel& parallel, const std::vector<at::Tensor>& gradients) const {
    std::vector<at::Tensor> ours;
    at::Tensor loss = at::zeros({}, parameters[0].tensor.options().requires_grad(true));
    for (size_t i = 0; i < gradients.size(); ++i) {
      ours.push_back(parameters[i].tensor);
      if (gradients[i].defined()) {
        loss = loss + (parameters[i].tensor * gradients[i]).sum();
      }
    }
    zero_grad(ours);
    parallel.begin_backward();
    loss.backward();
    parallel.finish_backward();
  }
  const at::Tensor& grad(size_t i) const { return parameters[i].tensor.grad(); }
};

CommHookOptions power_sgd(int64_t rank, bool batched = false) {
  return {
      .type = batched ? CommHookType::kBatchedPowerSgd : CommHookType::kPowerSgd,
      .power_sgd = {.matrix_approximation_rank = rank, .start_iter = 0, .min_compression_rate = 1}};
}

/// Of rank `rank`, different for every seed.
at::Tensor low_rank_matrix(int64_t rows, int64_t cols, int64_t rank, uint64_t seed) {
  at::Tensor left = at::empty({rows, rank});
  at::Tensor right = at::empty({rank, cols});
  fill_normal(left, seed, 0, 0);
  fill_normal(right, seed, 0, 1);
  return at::matmul(left, right);
}

at::Tensor normal(std::vector<int64_t> shape, uint64_t seed) {
  at::Tensor values = at::empty(shape);
  fill_normal(values, seed, 1, 2);
  return values;
}

double distance(const at::Tensor& a, const at::Tensor& b) {
  return ((a - b).norm() / b.norm()).item<double>();
}

TEST(Orthonormalize, GivesAnOrthonormalBasisEvenOfDependentColumns) {
  at::Tensor matrix = normal({20, 4}, 1);
  matrix.select(1, 1).copy_(matrix.select(1, 0) * 3);  // Nothing but rounding is left of it.
  const at::Tensor before = matrix.clone();
  orthonormalize(matrix, 0);
  const at::Tensor products = at::matmul(matrix.t(), matrix);
  at::Tensor expected = at::eye(4);
  expected[1][1] = products[1][1].item<double>() > 0.5 ? 1 : 0;  // Or it is left out.
  EXPECT_TRUE(at::allclose(products, expected, 0, 1e-5)) << matrix;
  const at::Tensor projected = at::matmul(matrix, at::matmul(matrix.t(), before));
  EXPECT_TRUE(at::allclose(projected, before, 1e-5, 1e-5));
}

TEST(Orthonormalize, LeavesZeroColumnsAndAddsEpsilonToNorms) {
  at::Tensor matrix = at::zeros({3, 2});
  matrix[1][1] = 4;
  orthonormalize(matrix, 0);
  EXPECT_TRUE(at::equal(matrix, at::tensor({0.0F, 0.0F, 0.0F, 1.0F, 0.0F, 0.0F}).view({3, 2})));
  at::Tensor column = at::full({1, 1}, 3.0);
  orthonormalize(column, 1);
  EXPECT_FLOAT_EQ(column.item<float>(), 0.75F);
}

TEST(FillNormal, DependsOnItsArgumentsAlone) {
  at::manual_seed(1);
  const at::Tensor a = normal({100}, 5);
  at::manual_seed(2);
  EXPECT_TRUE(at::equal(a, normal({100}, 5)));
  EXPECT_FALSE(at::equal(a, normal({100}, 6)));
  EXPECT_NEAR(a.std().item<double>(), 1, 0.3);
}

struct ExactCase {
  int ranks;
  int64_t columns;
  int64_t true_rank;
};

class PowerSgdExact : public ::testing::TestWithParam<ExactCase> {};

INSTANTIATE_TEST_SUITE_P(
    Ranks,
    PowerSgdExact,
    ::testing::Values(
        ExactCase{1, 2, 2},
        ExactCase{2, 1, 1},
        ExactCase{2, 2, 2},
        ExactCase{3, 4, 3},
        ExactCase{2, 8, 1}));

TEST_P(PowerSgdExact, ReproducesAMeanOfLowRank) {
  const ExactCase c = GetParam();
  ranks(c.ranks, [&](Group group) {
    const Given model({{40, 30}, {24, 2, 3, 3}, {7}});
    DataParallel parallel(model.parameters, {}, group, {.comm_hook = power_sgd(c.columns)});
    // The ranks' own gradients have full rank; what they differ by cancels out.
    const int last = group.size() - 1;
    const at::Tensor noise = group.size() == 1 || (group.rank() > 0 && group.rank() < last)
                                 ? at::zeros({40, 30})
                                 : normal({40, 30}, 9) * (group.rank() == 0 ? 1 : -1);
    for (int step = 0; step < 4; ++step) {
      const at::Tensor first = low_rank_matrix(40, 30, c.true_rank, 3);
      const at::Tensor second = low_rank_matrix(24, 18, c.true_rank, 4).view({24, 2, 3, 3});
      const at::Tensor third = at::full({7}, static_cast<double>(group.rank() + 1));
      model.backward(parallel, {first + noise, second, third});
      EXPECT_LT(distance(model.grad(0), first), 1e-5) << step;
      EXPECT_LT(distance(model.grad(1), second), 1e-5) << step;
      EXPECT_LT(distance(model.grad(2), at::full({7}, (group.size() + 1) / 2.0)), 1e-6);
      EXPECT_EQ(has_compressed(parallel), group.size() > 1);
    }
  });
}

TEST(PowerSgd, ComputesInFloat32ForGradientsOf16Bits) {
  ranks(2, [](Group group) {
    const Given model({{40, 30}}, at::kBFloat16);
    DataParallel parallel(model.parameters, {}, group, {.comm_hook = power_sgd(2)});
    const at::Tensor gradient = low_rank_matrix(40, 30, 2, 3).to(at::kBFloat16);
    model.backward(parallel, {gradient});
    EXPECT_EQ(model.grad(0).scalar_type(), at::kBFloat16);
    EXPECT_TRUE(has_compressed(parallel));
    EXPECT_LT(distance(model.grad(0).to(at::kFloat), gradient.to(at::kFloat)), 2e-2);
    for (const NamedTensor& item : parallel.hook_state().tensors) {
      EXPECT_EQ(item.tensor.scalar_type(), at::kFloat) << item.name;
    }
  });
}

TEST(PowerSgd, EqualsTorchsHooksFromTheSameStart) {
  std::ifstream file(LOCKSTEP_SOURCE_DIR "/tests/golden/power_sgd.json");
  const nlohmann::json golden = nlohmann::json::parse(file);
  const std::vector<std::vector<int64_t>> shapes = {{12, 16}, {16, 8}, {16}};
  const auto formula = [](const std::vector<int64_t>& shape,
                          const std::function<double(double)>& f) {
    at::Tensor values = at::empty({c10::multiply_integers(shape)}, at::kDouble);
    for (int64_t i = 0; i < values.numel(); ++i) {
      values[i] = f(static_cast<double>(i));
    }
    return values.to(at::kFloat).view(shape);
  };
  const auto first_q = [&](int64_t rows, int64_t columns, int shift) {
    return formula({rows, columns}, [&](double i) { return std::cos(0.9 * i + shift); });
  };
  for (const auto& [name, steps] : golden.items()) {
    const bool batched = name == "batched";
    CommHookOptions options = power_sgd(name == "rank_2" ? 2 : 1, batched);
    if (name == "rank_1_without_feedback") {
      options.use_error_feedback = false;
    }
    const int64_t columns = options.power_sgd.matrix_approximation_rank;
    ranks(2, [&, &steps = steps, &name = name](Group group) {
      const Given model(shapes);
      DataParallel parallel(model.parameters, {}, group, {.comm_hook = options});
      CommHookState start;
      if (batched) {
        start.tensors = {{"q/bucket0", first_q(19, columns, 0)}};
      } else {
        start.tensors = {{"q/w0", first_q(16, columns, 0)}, {"q/w1", first_q(8, columns, 1)}};
      }
      parallel.load_hook_state(start);
      for (size_t step = 0; step < steps.size(); ++step) {
        std::vector<at::Tensor> gradients;
        for (size_t p = 0; p < shapes.size(); ++p) {
          gradients.push_back(formula(shapes[p], [&](double i) {
            return std::sin(
                       0.37 * i * (1 + group.rank()) + 0.71 * static_cast<double>(step) +
                       2.0 * static_cast<double>(p)) +
                   0.1 * group.rank();
          }));
        }
        model.backward(parallel, gradients);
        for (size_t p = 0; p < shapes.size(); ++p) {
          const auto theirs = steps[step][p].get<std::vector<float>>();
          EXPECT_LT(distance(model.grad(p).flatten(), at::tensor(theirs)), 2e-5)
              << name << " step " << step << " parameter " << p;
        }
      }
    });
  }
}

TEST(PowerSgd, WarmsUpWithExactAverages) {
  for (const CommHookType wrapper : {CommHookType::kNone, CommHookType::kBf16}) {
    ranks(2, [&](Group group) {
      const Given model({{40, 30}});
      CommHookOptions options = power_sgd(1);
      options.wrapper = wrapper;
      options.power_sgd.start_iter = 2;
      DataParallel parallel(model.parameters, {}, group, {.comm_hook = options});
      const at::Tensor mean = (normal({40, 30}, 0) + normal({40, 30}, 1)) / 2;
      for (int step = 0; step < 3; ++step) {
        model.backward(parallel, {normal({40, 30}, static_cast<uint64_t>(group.rank()))});
        const double exact = wrapper == CommHookType::kNone ? 1e-6 : 1e-2;
        EXPECT_EQ(distance(model.grad(0), mean) < exact, step < 2) << step;
        EXPECT_EQ(has_compressed(parallel), step == 2) << step;
      }
    });
  }
}

TEST(PowerSgd, ErrorFeedbackDeliversEverythingInTheEnd) {
  for (const bool batched : {false, true}) {
    ranks(2, [&](Group group) {
      const Given model({{16, 40}, {5}, {30, 10}});
      const std::vector<at::Tensor> gradients = {
          normal({16, 40}, 10 + static_cast<uint64_t>(group.rank())),
          normal({5}, 1),
          normal({30, 10}, 20 + static_cast<uint64_t>(group.rank()))};
      const at::Tensor mean = (normal({16, 40}, 10) + normal({16, 40}, 11)) / 2;
      DataParallel parallel(
          model.parameters, {}, group, {.comm_hook = power_sgd(batched ? 4 : 2, batched)});
      at::Tensor sum = at::zeros({16, 40});
      const int steps = 300;
      for (int step = 0; step < steps; ++step) {
        model.backward(parallel, gradients);
        sum += model.grad(0);
      }
      // What is still owed does not grow with the number of steps; without feedback it would.
      EXPECT_LT(distance(sum / steps, mean), 0.1) << batched;
      EXPECT_TRUE(has_compressed(parallel)) << batched;
    });
  }
}

TEST(PowerSgd, AParameterUnusedOnAllRanksKeepsNoGradientAndItsError) {
  for (const bool batched : {false, true}) {
    ranks(2, [&](Group group) {
      const Given model({{16, 40}, {16, 40}});
      DataParallel parallel(model.parameters, {}, group, {.comm_hook = power_sgd(1, batched)});
      const at::Tensor gradient = normal({16, 40}, static_cast<uint64_t>(group.rank()));
      model.backward(parallel, {gradient, gradient});
      const auto error = [&] {
        for (const NamedTensor& item : parallel.hook_state().tensors) {
          if (item.name == "error/w1") {
            return item.tensor.clone();
          }
        }
        return at::Tensor();
      };
      const at::Tensor before = error();
      ASSERT_TRUE(has_compressed(parallel));
      model.parameters[1].tensor.mutable_grad().reset();
      model.backward(parallel, {gradient, at::Tensor()});
      EXPECT_FALSE(model.grad(1).defined());
      EXPECT_TRUE(at::equal(error(), before));
      model.backward(parallel, {gradient, group.rank() == 0 ? gradient : at::Tensor()});
      EXPECT_TRUE(model.grad(1).defined());
      EXPECT_FALSE(at::equal(error(), before));
    });
  }
}

TEST(PowerSgd, OverflowIsSeenEverywhereOnceAndThenForgotten) {
  for (const bool batched : {false, true}) {
    ranks(2, [&](Group group) {
      const Given model({{16, 40}});
      DataParallel parallel(model.parameters, {}, group, {.comm_hook = power_sgd(2, batched)});
      const at::Tensor gradient = low_rank_matrix(16, 40, 1, 3);
      at::Tensor broken = gradient.clone();
      if (group.rank() == 1) {
        broken[3][4] = std::numeric_limits<float>::infinity();
      }
      model.backward(parallel, {gradient});
      model.backward(parallel, {broken});
      EXPECT_FALSE(at::isfinite(model.grad(0)).all().item<bool>());
      for (int step = 0; step < 3; ++step) {
        model.backward(parallel, {gradient});
        EXPECT_TRUE(at::isfinite(model.grad(0)).all().item<bool>());
      }
      if (!batched) {
        EXPECT_LT(distance(model.grad(0), gradient), 1e-4);
      }
    });
  }
}

TEST(PowerSgd, RecoversFromGradientsOfZero) {
  ranks(2, [](Group group) {
    const Given model({{16, 40}});
    DataParallel parallel(model.parameters, {}, group, {.comm_hook = power_sgd(2)});
    for (int step = 0; step < 2; ++step) {
      model.backward(parallel, {at::zeros({16, 40})});
      EXPECT_EQ(model.grad(0).abs().max().item<double>(), 0);
    }
    const at::Tensor gradient = low_rank_matrix(16, 40, 2, 3);
    model.backward(parallel, {gradient});
    EXPECT_LT(distance(model.grad(0), gradient), 1e-5);
    EXPECT_TRUE(has_compressed(parallel));
  });
}

TEST(PowerSgd, AnAbandonedBackwardLeavesTheErrorAsItWas) {
  ranks(2, [](Group group) {
    const Given model({{16, 40}, {16, 40}});
    DataParallel parallel(
        model.parameters,
        {},
        group,
        {.cap_bytes = 1, .first_cap_bytes = 1, .comm_hook = power_sgd(1)});
    const at::Tensor gradient = normal({16, 40}, static_cast<uint64_t>(group.rank()));
    model.backward(parallel, {gradient, gradient});
    const auto errors = [&] {
      std::vector<at::Tensor> tensors;
      for (const NamedTensor& item : parallel.hook_state().tensors) {
        if (item.name.starts_with("error/")) {
          tensors.push_back(item.tensor.clone());
        }
      }
      return tensors;
    };
    const std::vector<at::Tensor> before = errors();
    ASSERT_TRUE(has_compressed(parallel));
    {
      const BackwardHooks saboteur(
          {model.parameters[0].tensor, model.parameters[1].tensor},
          [](size_t) { throw std::runtime_error("on purpose"); });
      EXPECT_THROW(model.backward(parallel, {gradient, gradient}), std::runtime_error);
    }
    parallel.abandon_backward();
    const std::vector<at::Tensor> after = errors();
    ASSERT_EQ(after.size(), 2U);
    for (size_t i = 0; i < after.size(); ++i) {
      EXPECT_TRUE(at::allclose(after[i], before[i], 1e-5, 1e-5));
    }
    model.backward(parallel, {gradient, gradient});
    EXPECT_EQ(parallel.hook_state().iteration, 2);
  });
}

}  // namespace
}  // namespace lockstep
