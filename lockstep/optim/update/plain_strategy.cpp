// SPDX-License-Identifier: Apache-2.0
#include "lockstep/optim/update/plain_strategy.h"

namespace lockstep::optim {

size_t PlainStrategy::step() {
  const std::vector<UpdateBatches> gathered = gather_all(layout_, numbers_);
  size_t count = 0;
  for (size_t group = 0; group < gathered.size(); ++group) {
    for (const Batch& batch : gathered[group].batches()) {
      count += batch.parameters.size();
      layout_.rule()->update(layout_.options(group), batch);
    }
    gathered[group].copy_back();
  }
  return count;
}

std::vector<UpdateBatches> gather_all(ParameterLayout& layout, DeviceNumbers& numbers) {
  std::vector<UpdateBatches> gathered;
  gathered.reserve(layout.group_count());
  for (size_t group = 0; group < layout.group_count(); ++group) {
    numbers.advance(group);
    gathered.push_back(
        gather_batches(layout, group, 0, layout.flat(group).items().size(), numbers.rate(group)));
  }
  return gathered;
}

}  // namespace lockstep::optim
