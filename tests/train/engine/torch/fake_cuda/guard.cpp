// A CUDA device that computes nothing, for a PyTorch without CUDA: FakeTensorMode then traces code on cuda tensors.
// Has PyTorch's own no-op device guard, and hooks that claim a GPU with cuDNN.
#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

namespace {

using c10::Device;
using c10::Stream;
constexpr auto cuda = c10::DeviceType::CUDA;

struct OneGpu final : c10::impl::NoOpDeviceGuardImpl<cuda> {
  Device exchangeDevice(Device) const override { return Device(cuda, 0); }
  Device getDevice() const override { return Device(cuda, 0); }
  Stream getStream(Device) const noexcept override { return Stream(Stream::DEFAULT, Device(cuda, 0)); }
  Stream getNewStream(Device device, int) const override { return getStream(device); }
  Stream exchangeStream(Stream stream) const noexcept override { return stream; }
  void record(void**, const Stream&, const c10::DeviceIndex, const c10::EventFlag) const override {}
  void block(void*, const Stream&) const override {}
  bool queryEvent(void*) const override { return true; }
  void destroyEvent(void*, const c10::DeviceIndex) const noexcept override {}
  bool queryStream(const Stream&) const override { return true; }
  void synchronizeStream(const Stream&) const override {}
};

// PyTorch looks the hooks up by this name.
struct CUDAHooks final : at::CUDAHooksInterface {
  explicit CUDAHooks(at::CUDAHooksArgs) {}
  void init() const override {}
  bool hasCUDA() const override { return true; }
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  c10::DeviceIndex deviceCount() const override { return 1; }
  c10::DeviceIndex getCurrentDevice() const override { return 0; }
  bool compiledWithCuDNN() const override { return true; }
  bool hasCuDNN() const override { return true; }
  long versionCuDNN() const override { return 92000; }
  long versionRuntimeCuDNN() const { return 92000; } // which older versions of PyTorch do not ask
  double batchnormMinEpsilonCuDNN() const override { return 0.0; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return false; }
};

} // namespace

using at::CUDAHooksArgs;
using at::CUDAHooksRegistry;
using at::RegistererCUDAHooksRegistry;
C10_REGISTER_CLASS_WITH_PRIORITY(CUDAHooksRegistry, CUDAHooks, c10::REGISTRY_PREFERRED, CUDAHooks)

// A PyTorch with CUDA registers its own guard while it is imported.
extern "C" void replace_guard() { c10::impl::DeviceGuardImplRegistrar(cuda, new OneGpu()); }
