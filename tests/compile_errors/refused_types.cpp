// SPDX-License-Identifier: Apache-2.0
//
// Mistakes of users that the compiler must explain in one line each. `refused:` names a part of the
// error of the next line of code; run.py compares.
#include <torch/data.h>

#include "lockstep/accelerator/accelerator.h"
#include "lockstep/data/dataset/from_torch.h"
#include "lockstep/data/loader/loader.h"
#include "lockstep/data/sample/collate.h"

namespace {

namespace data = lockstep::data;

struct WithoutGet {
  int64_t size() const { return 1; }
};
struct WithoutSize {
  at::Tensor get(int64_t /*index*/) const { return {}; }
};
struct GetNotConst {
  int64_t size() const { return 1; }
  at::Tensor get(int64_t /*index*/) { return {}; }
};
struct SizeNotConst {
  int64_t size() { return 1; }
  at::Tensor get(int64_t /*index*/) const { return {}; }
};
struct WithoutBatch {
  int64_t size() const { return 1; }
  at::Tensor get_batch(std::span<const int64_t> /*indices*/) const { return {}; }
};
struct Samples {
  int64_t size() const { return 1; }
  at::Tensor get(int64_t /*index*/) const { return {}; }
};

template <typename Loader>
void use(Loader loader) {
  for (auto& batch : loader) {
    static_cast<void>(batch);
  }
}

void data_sets() {
  // refused: this type has none of them
  use(data::Loader(WithoutGet(), {.batch_size = 2}));
  // refused: has no size(); add int64_t size() const
  use(data::Loader(data::collated(WithoutSize()), {.batch_size = 2}));
  // refused: must be const: several workers
  use(data::Loader(data::collated(GetNotConst()), {.batch_size = 2}));
  // refused: size() of this dataset must be const
  use(data::Loader(data::collated(SizeNotConst()), {.batch_size = 2}));
  // refused: add using Batch
  use(data::Loader(WithoutBatch(), {.batch_size = 2}));
  // refused: Loader(data::collated(dataset))
  use(data::Loader(Samples(), {.batch_size = 2}));
  // refused: this is a dataset of torch::data; wrap it
  use(data::Loader(torch::data::datasets::TensorDataset(at::ones({3})), {.batch_size = 2}));
  // refused: pass your own dataset to the Loader directly
  use(data::Loader(data::from_torch(Samples()), {.batch_size = 2}));
}

void data_loader_of_torch(lockstep::Accelerator& accelerator) {
  auto loader = torch::data::make_data_loader(
      torch::data::datasets::TensorDataset(at::ones({3})), torch::data::DataLoaderOptions(2));
  // refused: prepare does not accept torch's DataLoader
  auto prepared = accelerator.prepare(std::move(loader));
  for (auto& batch : *prepared) {
    static_cast<void>(batch);
  }
}

}  // namespace

int main() {
  data_sets();
  lockstep::Accelerator accelerator;
  data_loader_of_torch(accelerator);
}
