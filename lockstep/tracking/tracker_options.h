// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <string>
#include <vector>

namespace lockstep::tracking {

/// Selects a program as tracker; see exec_tracker.h.
struct ExecOptions {
  std::string command = {};       ///< For /bin/sh -c: "my_plot --live".
  double finish_timeout_s = 10.;  ///< How long finish() waits for the program.
};

/// Selects a server of MLflow as tracker; see mlflow_tracker.h.
struct MlflowOptions {
  /// The server, "https://mlflow.example". Empty: MLFLOW_TRACKING_URI.
  std::string tracking_uri = {};
  /// Created if missing. MLFLOW_EXPERIMENT_NAME overrides it, as in Accelerate. Empty: the
  /// project's name.
  std::string experiment_name = {};
  std::string run_name = {};  ///< Empty: the server chooses one.
  /// A run to continue. MLFLOW_RUN_ID overrides it. Empty: a new run.
  std::string run_id = {};
  std::map<std::string, std::string> tags = {};
  std::string description = {};
  double finish_timeout_s = 10.;  ///< How long flush() and finish() wait for the server.
};

/// Selects a run of Weights & Biases as tracker; see wandb_tracker.h. The variables are those of
/// wandb itself, and count if the option is empty.
struct WandbOptions {
  std::string project = {};            ///< WANDB_PROJECT; empty: the project's name.
  std::string entity = {};             ///< WANDB_ENTITY
  std::string name = {};               ///< WANDB_NAME
  std::string group = {};              ///< WANDB_RUN_GROUP
  std::string job_type = {};           ///< WANDB_JOB_TYPE
  std::string notes = {};              ///< WANDB_NOTES
  std::vector<std::string> tags = {};  ///< WANDB_TAGS, with commas.
  std::string id = {};                 ///< WANDB_RUN_ID; empty: eight random letters.
  std::string dir = {};                ///< WANDB_DIR; empty: the run's folder.
};

}  // namespace lockstep::tracking
