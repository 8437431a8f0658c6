// SPDX-License-Identifier: Apache-2.0
// Declares functions with lockstep/fwd.h, as a program's header does, and defines them with
// lockstep/lockstep.h.
#include "lockstep/fwd.h"

namespace {

using TensorLoader = lockstep::data::Loader<lockstep::data::TensorDataset>;

int rank_of(const lockstep::Group& group);
int batches_of(const TensorLoader& loader);

}  // namespace

#include <utility>

#include <gtest/gtest.h>

#include <ATen/ops/ones.h>

#include "lockstep/lockstep.h"

namespace {

/// Whether lockstep/lockstep.h defines all classes.
template <typename... Classes>
constexpr bool kAreDefined = ((sizeof(Classes) > 0) && ...);

namespace data = lockstep::data;

static_assert(kAreDefined<
              lockstep::Accelerator,
              lockstep::AcceleratorOptions,
              lockstep::Autocast,
              lockstep::CommHook,
              lockstep::EngineCore,
              lockstep::GradScaler,
              lockstep::GradientScope,
              lockstep::Group,
              lockstep::InitializeOptions,
              lockstep::LocalSgd,
              lockstep::Optimizer,
              lockstep::Profile,
              lockstep::Scheduler,
              lockstep::WorldSpec,
              lockstep::checkpoint::Contents,
              lockstep::checkpoint::Reader,
              data::Batch,
              data::Cursor,
              data::LoaderCore,
              data::LoaderOptions,
              data::Sampler,
              data::TensorDataset,
              lockstep::optim::FlatOptimizer,
              lockstep::schedule::Schedule,
              lockstep::tracking::Tracker>);

int rank_of(const lockstep::Group& group) {
  return group.rank();
}

int batches_of(const TensorLoader& loader) {
  return static_cast<int>(loader.size());
}

TEST(ForwardDeclarations, AreOfTheClassesInTheUmbrella) {
  const TensorLoader loader(
      data::TensorDataset(at::ones({8, 1}), at::ones({8, 1})), {.batch_size = 4});
  EXPECT_EQ(batches_of(loader), 2);
  lockstep::Accelerator accelerator;
  EXPECT_EQ(rank_of(std::as_const(accelerator.group())), accelerator.process_index());
}

}  // namespace
