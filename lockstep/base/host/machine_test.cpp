// SPDX-License-Identifier: Apache-2.0
#include "lockstep/base/host/machine.h"

#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/base/host/cores.h"
#include "lockstep/base/test_folder.h"

namespace lockstep {
namespace {

using testing::AllOf;
using testing::Contains;
using testing::ElementsAre;
using testing::Field;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::StartsWith;

class MadeUpMachine : public testing::Test {
 protected:
  void write(const std::string& name, const std::string& text) const {
    std::filesystem::create_directories((root_ / name).parent_path());
    std::ofstream(root_ / name) << text;
  }
  Machine look() const { return describe_machine(root_.path()); }
  TestFolder root_;
};

TEST_F(MadeUpMachine, IsReadFromItsFiles) {
  write("etc/os-release", "ID=debian\nPRETTY_NAME=\"Debian GNU/Linux 12 (bookworm)\"\n");
  write("proc/cpuinfo", "processor\t: 0\nmodel name\t: A CPU @ 2.0GHz\nmodel name\t: Another\n");
  write("proc/meminfo", "MemTotal:       24000000 kB\nMemAvailable:   12000000 kB\n");
  write("sys/devices/system/node/node0/cpulist", "0-3");
  write("sys/devices/system/node/node11/cpulist", "4-7");
  write("sys/devices/system/node/online", "0,11");
  write("proc/driver/nvidia/version", "NVRM version: NVIDIA Kernel Module  550.1\nGCC version:\n");
  write("proc/driver/nvidia/gpus/0000:01:00.0/information", "Model: \t\t NVIDIA H100\nIRQ: 5\n");
  write("proc/driver/nvidia/gpus/0000:02:00.0/information", "Model: \t\t NVIDIA H200\n");
  const Machine machine = look();
  EXPECT_EQ(machine.system.name, "Debian GNU/Linux 12 (bookworm)");
  EXPECT_EQ(machine.cpu.model, "A CPU @ 2.0GHz");
  EXPECT_EQ(machine.cpu.numa_nodes, 2);
  EXPECT_EQ(machine.memory.bytes, 24'576'000'000U);
  EXPECT_EQ(machine.memory.available_bytes, 12'288'000'000U);
  EXPECT_THAT(machine.gpus, ElementsAre("NVIDIA H100", "NVIDIA H200"));
  EXPECT_EQ(machine.gpu_driver, "NVIDIA Kernel Module  550.1");
}

TEST_F(MadeUpMachine, TheTightestLimitOfNestedGroupsCounts) {
  write("proc/self/cgroup", "0::/user/job\n");
  write("sys/fs/cgroup/cpu.max", "max 100000\n");
  write("sys/fs/cgroup/user/cpu.max", "150000 100000\n");
  write("sys/fs/cgroup/user/job/cpu.max", "400000 100000\n");
  write("sys/fs/cgroup/user/memory.max", "2147483648\n");
  write("sys/fs/cgroup/user/job/memory.max", "max\n");
  const Machine machine = look();
  EXPECT_EQ(machine.cpu.cgroup_cores, 1.5);
  EXPECT_EQ(machine.memory.cgroup_bytes, 2'147'483'648U);
}

TEST_F(MadeUpMachine, LimitsOfTheFirstVersionAreReadToo) {
  write("proc/self/cgroup", "4:memory:/docker/x\n3:cpu,cpuacct:/docker/x\n2:pids:/docker/x\n");
  write("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "50000\n");
  write("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us", "100000\n");
  write("sys/fs/cgroup/memory/docker/x/memory.limit_in_bytes", "1000000\n");
  write("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
  EXPECT_EQ(look().cpu.cgroup_cores, 0.5);
  EXPECT_EQ(look().memory.cgroup_bytes, 1'000'000U);
  write("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "-1\n");
  EXPECT_EQ(look().cpu.cgroup_cores, std::nullopt);
}

TEST_F(MadeUpMachine, IsDescribedWithoutFiles) {
  const Machine machine = look();
  EXPECT_EQ(machine.system.name, "");
  EXPECT_EQ(machine.memory.bytes, 0U);
  EXPECT_EQ(machine.memory.cgroup_bytes, std::nullopt);
  EXPECT_FALSE(machine.shared_memory);
  EXPECT_THAT(machine.gpus, IsEmpty());
}

TEST(ThisMachine, HasCoresMemoryAndALoopback) {
  const Machine machine = describe_machine();
  EXPECT_THAT(machine.system.kernel, StartsWith("Linux "));
  EXPECT_EQ(machine.cpu.allowed, available_cores());
  EXPECT_GE(machine.cpu.cores, machine.cpu.allowed);
  EXPECT_GT(machine.memory.bytes, machine.memory.available_bytes);
  EXPECT_THAT(
      machine.interfaces,
      Contains(AllOf(
          Field(&Machine::Interface::loopback, true),
          Field(&Machine::Interface::addresses, Contains("127.0.0.1")))));
  EXPECT_THAT(machine.limits, Contains(Field(&Machine::Limit::name, "nofile")));
}

}  // namespace
}  // namespace lockstep
