// SPDX-License-Identifier: Apache-2.0
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "lockstep/accelerator/trackers.h"
#include "lockstep/base/error.h"
#include "lockstep/tracking/mlflow/mlflow_tracker.h"
#include "lockstep/tracking/tracker.h"
#include "lockstep/tracking/values/table.h"
#include "lockstep/tracking/wandb/wandb_tracker.h"
#include "python/bindings/bindings.h"
#include "python/bindings/json.h"

namespace lockstep::python {
namespace {

using tracking::MlflowTracker;
using tracking::RunStatus;
using tracking::Tracker;
using tracking::WandbTracker;

RunStatus status_of(const std::string& name) {
  for (const auto status : {RunStatus::kFinished, RunStatus::kFailed, RunStatus::kKilled}) {
    if (name == tracking::name_of(status)) {
      return status;
    }
  }
  throw ConfigError(
      "finish", "invalid value '" + name + "' for status; expected finished, failed or killed");
}

void bind_base(py::module_& module) {
  py::class_<Tracker, std::shared_ptr<Tracker>>(module, "Tracker")
      .def_property_readonly("name", &Tracker::name)
      .def(
          "store_config",
          [](Tracker& self, const py::dict& config) {
            const nlohmann::json json = to_json(config, "store_init_configuration");
            const py::gil_scoped_release no_gil;
            self.store_config(json);
          })
      .def("log", &Tracker::log, NoGil())
      .def(
          "log_images",
          [](Tracker& self, const std::map<std::string, at::Tensor>& images, int64_t step) {
            self.log_images(internal::image_batches(images), step);
          },
          NoGil())
      .def(
          "log_histograms",
          [](Tracker& self, const std::map<std::string, at::Tensor>& values, int64_t step) {
            self.log_histograms(internal::histograms(values), step);
          },
          NoGil())
      .def("log_text", &Tracker::log_text, NoGil())
      .def(
          "log_table",
          [](Tracker& self,
             const std::string& name,
             std::vector<std::string> columns,
             const py::list& rows,
             int64_t step) {
            tracking::Table table{.columns = std::move(columns), .rows = {}};
            for (const py::handle row : rows) {
              table.rows.push_back(to_json(row, "log_table").get<std::vector<nlohmann::json>>());
            }
            const py::gil_scoped_release no_gil;
            self.log_tables({{name, table}}, step);
          })
      .def("flush", &Tracker::flush, NoGil())
      .def(
          "finish",
          [](Tracker& self, const std::string& status) { self.finish(status_of(status)); },
          py::arg("status") = "finished",
          NoGil());
}

}  // namespace

void bind_tracking(py::module_& module) {
  bind_base(module);
  py::class_<MlflowTracker, Tracker, std::shared_ptr<MlflowTracker>>(module, "MlflowTracker")
      .def(
          py::init([](const std::string& folder,
                      std::map<std::string, std::string> tags,
                      std::string experiment_name,
                      std::string run_name,
                      std::string run_id,
                      std::string description) {
            const py::gil_scoped_release no_gil;
            return std::make_shared<MlflowTracker>(
                folder,
                tracking::MlflowOptions{
                    .experiment_name = std::move(experiment_name),
                    .run_name = std::move(run_name),
                    .run_id = std::move(run_id),
                    .tags = std::move(tags),
                    .description = std::move(description)});
          }),
          py::arg("folder"),
          py::arg("tags"),
          py::arg("experiment_name") = "",
          py::arg("run_name") = "",
          py::arg("run_id") = "",
          py::arg("description") = "")
      .def(
          "log_artifact",
          [](MlflowTracker& self, const std::string& file, const std::string& path) {
            self.log_artifact(file, path);
          },
          NoGil());
  py::class_<WandbTracker, Tracker, std::shared_ptr<WandbTracker>>(module, "WandbTracker")
      .def(py::init([](const std::string& folder, const py::dict& values) {
        const nlohmann::json json = to_json(values, "WandBTracker");
        tracking::WandbOptions options;
        options.project = json.value("project", "");
        options.entity = json.value("entity", "");
        options.name = json.value("name", "");
        options.group = json.value("group", "");
        options.job_type = json.value("job_type", "");
        options.notes = json.value("notes", "");
        options.tags = json.value("tags", std::vector<std::string>());
        options.id = json.value("id", "");
        options.dir = json.value("dir", "");
        return std::make_shared<WandbTracker>(folder, std::move(options));
      }))
      .def_property_readonly("id", &WandbTracker::id)
      .def_property_readonly(
          "dir", [](const WandbTracker& self) { return self.folder().string(); });
  module.def("mlflow_is_usable", &tracking::mlflow_is_usable);
}

}  // namespace lockstep::python
