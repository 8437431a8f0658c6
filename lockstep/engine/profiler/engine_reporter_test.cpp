// SPDX-License-Identifier: Apache-2.0
#include <chrono>
#include <filesystem>
#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/base/log.h"
#include "lockstep/base/test_folder.h"
#include "lockstep/comm/group.h"
#include "lockstep/comm/thread/thread_transport.h"
#include "lockstep/engine/engine.h"
#include "lockstep/engine/test_engine.h"
#include "lockstep/optim/clip.h"

namespace lockstep {
namespace {

using ::testing::HasSubstr;
using ::testing::SizeIs;

/// Lines with `part` that `body` logs.
template <typename Body>
std::vector<std::string> lines_with(const std::string& part, const Body& body) {
  std::vector<std::string> lines;
  set_log_sink([&](const std::string& line) {
    if (line.find(part) != std::string::npos) {
      lines.push_back(line);
    }
  });
  body();
  set_log_sink({});
  return lines;
}

/// Two updates of two micro-steps on two ranks.
void train_twice(const std::string& more) {
  const std::string config =
      R"({"train_batch_size": 16, "gradient_accumulation_steps": 2, "optimizer":
          {"type": "SGD", "params": {"lr": 0.25, "momentum": 0.5}})" +
      more + "}";
  on_engines(2, config, [](TestEngine& engine, EngineNet&) {
    for (int step = 0; step < 4; ++step) {
      engine.backward(engine(engine_batch(step)).square().mean());
      engine.step();
    }
  });
}

struct Times {
  double forward = 0, backward = 0, inner = 0, allreduce = 0, step = 0;
};

Times times_of(const std::string& line, const std::string& of) {
  const auto after = [&](const std::string& name) {
    const std::string key = name + of + ": ";
    const size_t at = line.find(key);
    EXPECT_NE(at, std::string::npos) << key << " in " << line;
    return at == std::string::npos ? 0 : std::stod(line.substr(at + key.size()));
  };
  return {
      after("| fwd"),
      after("| bwd"),
      after("| bwd_inner"),
      after("| bwd_allreduce"),
      after("| step")};
}

TEST(WallClockBreakdown, TellsEachMicroStepAndEachUpdateInItsParts) {
  const TestFolder folder;
  const std::string more = R"(, "wall_clock_breakdown": true, "csv_monitor": {"enabled": true,
      "job_name": "job", "output_path": ")" +
                           folder.path().string() + "\"}";
  const auto lines = lines_with("time (ms)", [&] { train_twice(more); });
  ASSERT_THAT(lines, SizeIs(6)) << "two of micro-steps and one of the update, twice";
  constexpr double kRounding = 0.05;
  for (size_t update = 0; update < 2; ++update) {
    Times sum;
    for (size_t micro_step = 0; micro_step < 2; ++micro_step) {
      const Times times = times_of(lines[3 * update + micro_step], "_microstep");
      EXPECT_NEAR(times.backward, times.inner + times.allreduce, kRounding);
      sum.forward += times.forward;
      sum.backward += times.backward;
      sum.inner += times.inner;
      sum.allreduce += times.allreduce;
      sum.step += times.step;
    }
    const Times whole = times_of(lines[3 * update + 2], "");
    EXPECT_NEAR(whole.forward, sum.forward, kRounding);
    EXPECT_NEAR(whole.backward, sum.backward, kRounding);
    EXPECT_NEAR(whole.inner, sum.inner, kRounding);
    EXPECT_NEAR(whole.allreduce, sum.allreduce, kRounding);
    EXPECT_NEAR(whole.step, sum.step, kRounding);
    EXPECT_GT(whole.inner, 0);
  }
  for (const char* part : {"forward", "backward", "backward_inner", "backward_allreduce", "step"}) {
    EXPECT_TRUE(std::filesystem::exists(
        folder.path() / "job" / (std::string("Train_Samples_elapsed_time_ms_") + part + ".csv")))
        << part;
  }
  EXPECT_THAT(lines_with("time (ms)", [] { train_twice(""); }), SizeIs(0));
}

/// Forwards to another transport, and calls `on_wait` before each wait for an operation.
class WaitNotifier final : public comm::Transport {
 public:
  WaitNotifier(std::shared_ptr<comm::Transport> transport, std::function<void()> on_wait)
      : transport_(std::move(transport)), on_wait_(std::move(on_wait)) {}
  const char* name() const override { return transport_->name(); }
  int rank() const override { return transport_->rank(); }
  int size() const override { return transport_->size(); }
  std::shared_ptr<comm::Work> start(
      comm::Collective collective, comm::Milliseconds timeout) override {
    return std::make_shared<NotifyingWork>(
        transport_->start(std::move(collective), timeout), on_wait_);
  }
  std::shared_ptr<comm::Transport> split(int color, int key, comm::Milliseconds timeout) override {
    return transport_->split(color, key, timeout);
  }

 private:
  class NotifyingWork final : public comm::Work {
   public:
    NotifyingWork(std::shared_ptr<comm::Work> work, std::function<void()> on_wait)
        : work_(std::move(work)), on_wait_(std::move(on_wait)) {}
    bool done() const override { return work_->done(); }
    void wait(comm::Milliseconds timeout) override {
      on_wait_();
      work_->wait(timeout);
    }

   private:
    std::shared_ptr<comm::Work> work_;
    std::function<void()> on_wait_;
  };

  std::shared_ptr<comm::Transport> transport_;
  std::function<void()> on_wait_;
};

// Rank 1 begins its backward after rank 0 waits for the average. The interval between these events
// is part of rank 0's allreduce time, however long it is.
TEST(WallClockBreakdown, AllreduceContainsTheWaitForSlowerRanks) {
  using Clock = std::chrono::steady_clock;
  constexpr double kRounding = 0.01;
  for (const bool scaled : {false, true}) {
    for (const int stage : {0, 2}) {
      SCOPED_TRACE(stage);
      bool computed = false;  // Rank 0 has computed the last gradient, the first layer's.
      std::promise<Clock::time_point> waits;
      double waited_ms = 0;
      const auto transports = comm::make_thread_transports(2);
      const std::string config = R"({"train_micro_batch_size_per_gpu": 4,
          "wall_clock_breakdown": true, "optimizer": {"type": "SGD", "params": {"lr": 0.25}},
          "zero_optimization": {"stage": )" +
                                 std::to_string(stage) + "}}";
      const auto run = [&](InitializeOptions options) {
        const int rank = options.connected->world.rank;
        std::shared_ptr<comm::Transport> transport = transports[rank];
        if (rank == 0) {
          transport = std::make_shared<WaitNotifier>(transport, [&] {
            if (std::exchange(computed, false)) {
              waits.set_value(Clock::now());
            }
          });
        }
        options.connected->group = Group(transport, std::chrono::seconds(60));
        EngineNet net;
        auto made = initialize(net, std::move(options));
        auto& engine = std::get<0>(made);
        if (rank == 0) {
          net->fc->weight.register_hook([&](const at::Tensor&) { computed = true; });
        }
        const at::Tensor loss = engine(engine_batch(0)).square().mean();
        if (rank == 1) {
          std::future<Clock::time_point> began = waits.get_future();
          ASSERT_EQ(began.wait_for(std::chrono::seconds(60)), std::future_status::ready);
          at::ones({512, 512}).mm(at::ones({512, 512}));  // This rank is slower.
          waited_ms = std::chrono::duration<double, std::milli>(Clock::now() - began.get()).count();
        }
        if (scaled) {
          engine.scale(loss).backward();
        } else {
          engine.backward(loss);
        }
        engine.step();
      };
      const auto lines = lines_with("bwd_microstep", [&] { on_engine_ranks(2, config, run); });
      ASSERT_THAT(lines, SizeIs(1));
      EXPECT_GE(times_of(lines[0], "_microstep").allreduce + kRounding, waited_ms) << lines[0];
    }
  }
}

TEST(StepsPerPrint, ReportsEveryNUpdates) {
  const auto lines = lines_with("step=", [] {
    train_twice(R"(, "steps_per_print": 2)");
    train_twice(R"(, "steps_per_print": 1, "timers": {"throughput": {"enabled": false}})");
    train_twice(R"(, "steps_per_print": 3)");
    train_twice("");
  });
  ASSERT_THAT(lines, SizeIs(3));
  EXPECT_THAT(lines[0], HasSubstr("step=2, skipped=0, lr=[0.25], mom=[0.5], samples per second="));
  EXPECT_THAT(lines[1], HasSubstr("step=1, skipped=0, lr=[0.25], mom=[0.5]"));
  EXPECT_THAT(lines[2], HasSubstr("step=2, skipped=0, lr=[0.25], mom=[0.5]"));
  EXPECT_THAT(lines[2], ::testing::Not(HasSubstr("samples per second")));
}

TEST(GradientNorm, IsReportedFromStage1OnWithoutClipping) {
  EngineNet alone;
  alone->forward(engine_batch(0)).square().mean().backward();
  const double expected = optim::grad_norm(alone->parameters()).item<double>();
  std::vector<at::Tensor> updated;
  for (const at::Tensor& parameter : alone->parameters()) {
    updated.push_back(parameter.detach() - 4 * parameter.grad());
  }
  const auto config = [](int stage, const std::string& more) {
    return R"({"train_micro_batch_size_per_gpu": 4, "gradient_clipping": 0,
        "optimizer": {"type": "SGD", "params": {"lr": 4}}, "zero_optimization":
        {"stage3_param_persistence_threshold": 0, "stage": )" +
           std::to_string(stage) + "}" + more + "}";
  };
  const auto norm_of = [&](int world, const std::string& text) {
    std::optional<double> norm;
    on_engines(world, text, [&](TestEngine& engine, EngineNet& net) {
      engine.backward(engine(engine_batch(0)).square().mean());
      engine.step();
      if (text.find("fp16") == std::string::npos && text.find("bf16") == std::string::npos) {
        expect_values(full_values(engine.accelerator(), net), updated);
      }
      const auto own = engine.get_global_grad_norm();
      if (engine.accelerator().is_main_process()) {
        norm = own;
      }
    });
    return norm;
  };
  for (const int world : {1, 2}) {
    EXPECT_EQ(norm_of(world, config(0, "")), std::nullopt);
    std::string unwanted = config(1, "");
    unwanted.insert(unwanted.find("\"stage\""), "\"compute_grad_norm\": false, ");
    EXPECT_EQ(norm_of(world, unwanted), std::nullopt);
    for (const int stage : {1, 2, 3}) {
      EXPECT_NEAR(norm_of(world, config(stage, "")).value_or(-1), expected, 1e-4 * expected);
    }
    for (const char* type : {"fp16", "bf16"}) {
      const std::string more =
          std::string(R"(, ")") + type + R"(": {"enabled": true)" +
          (type == std::string("fp16") ? R"(, "initial_scale_power": 8})" : "}");
      EXPECT_NEAR(norm_of(world, config(0, more)).value_or(-1), expected, 0.05 * expected) << type;
    }
  }
}

}  // namespace
}  // namespace lockstep
