// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Declares Lockstep's main classes, for headers of a program that only name them in references and
/// pointers. It includes nothing. Sources that use the classes include lockstep/lockstep.h, or one
/// of the headers in docs/headers.md.

namespace lockstep {

class Accelerator;
struct AcceleratorOptions;
class Autocast;
class CommHook;
class EngineCore;
class GradScaler;
class GradientScope;
class Group;
struct InitializeOptions;
class LocalSgd;
class Optimizer;
class Profile;
class Scheduler;
struct WorldSpec;

namespace checkpoint {
class Contents;
class Reader;
}  // namespace checkpoint

namespace data {
struct Batch;
struct Cursor;
template <typename D>
class Loader;
class LoaderCore;
struct LoaderOptions;
class Sampler;
class TensorDataset;
}  // namespace data

namespace optim {
class FlatOptimizer;
}  // namespace optim

namespace schedule {
class Schedule;
}  // namespace schedule

namespace tracking {
struct Table;
class Tracker;
}  // namespace tracking

}  // namespace lockstep
