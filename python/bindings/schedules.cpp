// SPDX-License-Identifier: Apache-2.0
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "lockstep/base/error.h"
#include "lockstep/schedule/deepspeed_schedules.h"
#include "lockstep/schedule/schedule.h"
#include "python/bindings/bindings.h"

namespace lockstep::python {
namespace {

using Numbers = std::vector<double>;
using schedule::Schedule;

schedule::DeepSpeedWarmup warmup_type(const std::string& name) {
  if (name != "log" && name != "linear") {
    throw ConfigError(
        "schedule",
        fmt::format("invalid value '{}' for warmup_type; expected log or linear", name));
  }
  return name == "log" ? schedule::DeepSpeedWarmup::kLog : schedule::DeepSpeedWarmup::kLinear;
}

Schedule warmup(
    const Numbers& min_lr, const Numbers& max_lr, int64_t steps, const std::string& type) {
  return schedule::deepspeed_warmup(
      {.warmup_min_lr = min_lr,
       .warmup_max_lr = max_lr,
       .warmup_num_steps = steps,
       .warmup_type = warmup_type(type)});
}

Schedule warmup_decay(
    int64_t total,
    const Numbers& min_lr,
    const Numbers& max_lr,
    int64_t steps,
    const std::string& type) {
  return schedule::deepspeed_warmup_decay({.total_num_steps = total,
                                           .warmup_min_lr = min_lr,
                                           .warmup_max_lr = max_lr,
                                           .warmup_num_steps = steps,
                                           .warmup_type = warmup_type(type)})
      .without_end();
}

Schedule warmup_cosine(
    int64_t total, double min_ratio, int64_t steps, double cos_min_ratio, const std::string& type) {
  return schedule::deepspeed_warmup_cosine({.total_num_steps = total,
                                            .warmup_min_ratio = min_ratio,
                                            .warmup_num_steps = steps,
                                            .cos_min_ratio = cos_min_ratio,
                                            .warmup_type = warmup_type(type)})
      .without_end();
}

Schedule lr_range_test(const Numbers& min_lr, int64_t step_size, double step_rate, bool staircase) {
  return schedule::deepspeed_lr_range_test(
      {.lr_range_test_min_lr = min_lr,
       .lr_range_test_step_size = step_size,
       .lr_range_test_step_rate = step_rate,
       .lr_range_test_staircase = staircase});
}

Schedule one_cycle(
    const Numbers& min_lr,
    const Numbers& max_lr,
    double decay_lr_rate,
    int64_t first_step_size,
    std::optional<int64_t> second_step_size,
    int64_t first_stair_count,
    std::optional<int64_t> second_stair_count,
    int64_t decay_step_size,
    bool cycle_momentum,
    const Numbers& min_mom,
    const Numbers& max_mom,
    double decay_mom_rate) {
  return schedule::deepspeed_one_cycle(
      {.cycle_min_lr = min_lr,
       .cycle_max_lr = max_lr,
       .decay_lr_rate = decay_lr_rate,
       .cycle_first_step_size = first_step_size,
       .cycle_second_step_size = second_step_size,
       .cycle_first_stair_count = first_stair_count,
       .cycle_second_stair_count = second_stair_count,
       .decay_step_size = decay_step_size,
       .cycle_momentum = cycle_momentum,
       .cycle_min_mom = min_mom,
       .cycle_max_mom = max_mom,
       .decay_mom_rate = decay_mom_rate});
}

}  // namespace

void bind_schedules(py::module_& module) {
  py::class_<Schedule>(module, "Schedule")
      .def("lr", &Schedule::lr, py::arg("step"), py::arg("base_lr"), py::arg("group"))
      .def("momentum", &Schedule::momentum, py::arg("step"), py::arg("group"))
      .def_property_readonly("beta2", &Schedule::beta2)
      .def_property_readonly("groups", &Schedule::groups);
  // DeepSpeed's schedules, with the arguments of its classes in their order.
  module.def("warmup_lr", &warmup);
  module.def("warmup_decay_lr", &warmup_decay);
  module.def("warmup_cosine_lr", &warmup_cosine);
  module.def("lr_range_test", &lr_range_test);
  module.def("one_cycle", &one_cycle);
}

}  // namespace lockstep::python
