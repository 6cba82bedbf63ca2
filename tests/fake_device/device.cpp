// A second device without a GPU: PyTorch's PrivateUse1 backend over the CPU's own kernels.
//
// Its memory is the host's, so it proves nothing about speed or about CUDA's kernels. What it holds
// is what CUDA holds of callers: tensors of one operator lie on one device (0-dim CPU tensors and CPU
// indices may be mixed in), a CPU generator is refused, and each copy and wait is reported.
// No Python.h: `device.py` calls the extern "C" functions at the end through ctypes.
#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/EmptyTensor.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/native/DispatchStub.h>
#include <ATen/native/Resize.h>
#include <ATen/native/transformers/attention.h>
#include <ATen/ops/_local_scalar_dense_native.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_cpu_dispatch.h>
#include <ATen/ops/set_cpu_dispatch.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/library.h>

#include <atomic>
#include <cstring>
#include <set>

namespace {
using at::Tensor;
constexpr auto kFake = c10::DeviceType::PrivateUse1;

void (*report_event)(const char* kind, const char* name) = nullptr;
constexpr int kMost = 8;  // devices
std::atomic<int64_t> live[kMost], peak[kMost], launches;
int device_count = 1;
thread_local c10::DeviceIndex current = 0;

void report(const char* kind, const std::string& name) {
  if (report_event) report_event(kind, name.c_str());
}

void held(c10::DeviceIndex at, int64_t bytes) {
  const int64_t now = live[at] += bytes;
  if (now > peak[at]) peak[at] = now;
}

// --- memory and devices

struct Block {
  void* at;
  size_t bytes;
  c10::DeviceIndex device;
};

void release(void* context) {
  auto* block = static_cast<Block*>(context);
  held(block->device, -static_cast<int64_t>(block->bytes));
  free(block->at);
  delete block;
}

struct Allocator final : c10::Allocator {
  c10::DataPtr allocate(size_t bytes) override {
    void* at = nullptr;
    if (posix_memalign(&at, 64, bytes ? bytes : 64)) throw std::bad_alloc();
    held(current, bytes);
    return {at, new Block{at, bytes, current}, &release, c10::Device(kFake, current)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* to, const void* from, size_t bytes) const override { std::memcpy(to, from, bytes); }
} allocator;
REGISTER_ALLOCATOR(kFake, &allocator);

c10::DeviceIndex index_of(c10::Device device) { return device.index() < 0 ? current : device.index(); }

struct Guard final : c10::impl::DeviceGuardImplInterface {
  Guard() = default;
  explicit Guard(c10::DeviceType) {}
  c10::DeviceType type() const override { return kFake; }
  c10::Device exchangeDevice(c10::Device device) const override {
    const auto before = current;
    current = index_of(device);
    return {kFake, before};
  }
  c10::Device getDevice() const override { return {kFake, current}; }
  void setDevice(c10::Device device) const override { current = index_of(device); }
  void uncheckedSetDevice(c10::Device device) const noexcept override { current = index_of(device); }
  c10::Stream getStream(c10::Device device) const override { return c10::Stream(c10::Stream::DEFAULT, device); }
  c10::Stream getDefaultStream(c10::Device device) const override { return c10::Stream(c10::Stream::DEFAULT, device); }
  c10::Stream exchangeStream(c10::Stream stream) const override { return stream; }
  c10::DeviceIndex deviceCount() const noexcept override { return device_count; }
  void record(void**, const c10::Stream&, const c10::DeviceIndex, const c10::EventFlag) const override {}
  void block(void*, const c10::Stream&) const override {}
  bool queryEvent(void*) const override { return true; }
  void destroyEvent(void*, const c10::DeviceIndex) const noexcept override {}
  bool queryStream(const c10::Stream&) const override { return true; }
  void synchronizeStream(const c10::Stream&) const override {}
};
C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard);

struct Hooks final : at::PrivateUse1HooksInterface {
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  c10::DeviceIndex deviceCount() const override { return device_count; }
  c10::DeviceIndex getCurrentDevice() const override { return current; }
  c10::Allocator* getPinnedMemoryAllocator() const override { return c10::GetCPUAllocator(); }
  void init() const override {}
};

// --- the same bytes under the other device

Tensor alias(const Tensor& tensor, c10::DataPtr bytes, c10::Allocator* by, c10::DispatchKey key) {
  const auto size = tensor.storage().nbytes();
  c10::Storage storage(c10::Storage::use_byte_size_t(), size, std::move(bytes), by, by != nullptr);
  auto out = at::detail::make_tensor<c10::TensorImpl>(std::move(storage), c10::DispatchKeySet(key), tensor.dtype());
  out.unsafeGetTensorImpl()->set_sizes_and_strides(tensor.sizes(), tensor.strides(), tensor.storage_offset());
  return out;
}

Tensor on_host(const Tensor& tensor) {
  if (!tensor.defined() || !tensor.is_privateuseone()) return tensor;
  auto storage = tensor.storage();
  c10::DataPtr bytes(
      storage.mutable_data(), new c10::Storage(storage),
      [](void* kept) { delete static_cast<c10::Storage*>(kept); }, c10::Device(c10::kCPU));
  auto out = alias(tensor, std::move(bytes), nullptr, c10::DispatchKey::CPU);
  if (tensor.is_conj()) out._set_conj(true);
  if (tensor.is_neg()) out._set_neg(true);
  return out;
}

struct Kept {
  c10::Storage storage;
  int64_t bytes;
  c10::DeviceIndex device;
};

Tensor on_device(const Tensor& tensor, c10::Device device) {
  if (!tensor.defined() || !tensor.is_cpu()) return tensor;
  auto storage = tensor.storage();
  auto* kept = new Kept{storage, static_cast<int64_t>(storage.nbytes()), index_of(device)};
  held(kept->device, kept->bytes);
  c10::DataPtr bytes(
      storage.mutable_data(), kept,
      [](void* context) {
        auto* kept = static_cast<Kept*>(context);
        held(kept->device, -kept->bytes);
        delete kept;
      },
      device);
  return alias(tensor, std::move(bytes), &allocator, c10::DispatchKey::PrivateUse1);
}

// --- every operator without an implementation of its own

const std::set<std::string> kTakeHostIndices = {
    "aten::index", "aten::index_put", "aten::index_put_", "aten::_index_put_impl_", "aten::_unsafe_index"};

// Operators whose result has a size that CUDA's host has to wait for; a mask as an index is one too.
const std::set<std::string> kSizedByData = {"aten::nonzero", "aten::masked_select", "aten::_unique2",
                                            "aten::bincount", "aten::repeat_interleave", "aten::equal"};

// The one device of an operator's tensors; what lies elsewhere is refused as CUDA refuses it.
std::optional<c10::Device> device_of(const c10::OperatorHandle& op, const torch::jit::Stack& stack) {
  const auto& arguments = op.schema().arguments();
  const auto first = stack.size() - arguments.size();
  std::optional<c10::Device> device;
  std::string elsewhere;
  for (size_t i = 0; i < arguments.size(); ++i) {
    const auto see = [&](const Tensor& tensor) {
      if (!tensor.defined()) return;
      if (tensor.is_privateuseone()) {
        if (tensor.scalar_type() == at::kBool && kTakeHostIndices.count(op.schema().name()) &&
            arguments[i].name() == "indices")
          report("nonzero", op.schema().name());
        if (device && *device != tensor.device()) elsewhere += " another device";
        if (!device) device = tensor.device();
      } else if (kTakeHostIndices.count(op.schema().name()) && arguments[i].name() == "indices") {
        report("H2D", op.schema().name());
      } else if (tensor.dim() != 0) {
        elsewhere += " " + arguments[i].name() + " on the host";
      }
    };
    const auto& value = stack[first + i];
    if (value.isTensor()) see(value.toTensor());
    else if (value.isList())
      for (const c10::IValue& each : value.toListRef()) if (each.isTensor()) see(each.toTensor());
  }
  if (device && kSizedByData.count(op.schema().name())) report("nonzero", op.schema().name());
  TORCH_CHECK(elsewhere.empty(), "Expected all tensors to be on the same device: ", op.schema().operator_name(), elsewhere);
  return device;
}

bool writes_into(const c10::AliasInfo* result, const c10::AliasInfo* argument) {
  return result && argument && result->isWrite() && *result == *argument;
}

void on_the_cpu(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const auto& arguments = op.schema().arguments();
  const auto& returns = op.schema().returns();
  ++launches;
  const auto first = stack->size() - arguments.size();
  auto device = device_of(op, *stack);
  std::vector<Tensor> given(arguments.size()), regrown(arguments.size());
  for (size_t i = 0; i < arguments.size(); ++i) {
    auto& value = (*stack)[first + i];
    if (value.isTensor()) {
      given[i] = value.toTensor();
      const bool regrows = arguments[i].is_out() && given[i].is_privateuseone() && given[i].numel() == 0;
      if (regrows) regrown[i] = at::empty({0}, given[i].options().device(c10::kCPU));
      value = regrows ? regrown[i] : on_host(given[i]);
    } else if (value.isTensorList()) {
      c10::List<Tensor> tensors;
      for (const Tensor& each : value.toTensorVector()) tensors.push_back(on_host(each));
      value = tensors;
    } else if (value.isOptionalTensorList()) {
      c10::List<std::optional<Tensor>> tensors;
      for (const std::optional<Tensor>& each : value.toOptionalTensorVector())
        tensors.push_back(each ? std::optional<Tensor>(on_host(*each)) : std::nullopt);
      value = tensors;
    } else if (value.isDevice()) {
      if (!device) device = value.toDevice();
      value = c10::Device(c10::kCPU);
    } else if (value.isGenerator()) {
      TORCH_CHECK(!value.toGenerator().device().is_cpu(), "Expected a generator of the device but found one of the CPU");
    }
  }
  op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), stack);
  const auto target = device.value_or(c10::Device(kFake, current));
  const auto first_return = stack->size() - returns.size();
  for (size_t i = 0; i < given.size(); ++i) {
    if (!regrown[i].defined()) continue;
    given[i].resize_(regrown[i].sizes());
    on_host(given[i]).copy_(regrown[i]);
  }
  for (size_t r = 0; r < returns.size(); ++r) {
    auto& value = (*stack)[first_return + r];
    if (value.isTensor() && value.toTensor().defined()) {
      Tensor out;
      for (size_t i = 0; i < given.size() && !out.defined(); ++i)
        if (writes_into(returns[r].alias_info(), arguments[i].alias_info())) out = given[i];
      value = out.defined() ? out : on_device(value.toTensor(), target);
    } else if (value.isTensorList()) {
      c10::List<Tensor> tensors;
      for (const Tensor& each : value.toTensorVector()) tensors.push_back(on_device(each, target));
      value = tensors;
    }
  }
}

// --- operators that make, copy or view a tensor

Tensor empty(c10::IntArrayRef size, std::optional<c10::ScalarType> dtype, std::optional<c10::Layout>,
             std::optional<c10::Device> device, std::optional<bool>, std::optional<c10::MemoryFormat> format) {
  c10::DeviceGuard guard(c10::device_or_default(device));
  return at::detail::empty_generic(size, &allocator, c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                   c10::dtype_or_default(dtype), format);
}

Tensor empty_strided(c10::IntArrayRef size, c10::IntArrayRef stride, std::optional<c10::ScalarType> dtype,
                     std::optional<c10::Layout>, std::optional<c10::Device> device, std::optional<bool>) {
  c10::DeviceGuard guard(c10::device_or_default(device));
  return at::detail::empty_strided_generic(size, stride, &allocator, c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                           c10::dtype_or_default(dtype));
}

Tensor copy_from(const Tensor& from, const Tensor& to, bool non_blocking) {
  if (from.device() != to.device())
    report(from.is_cpu() ? "H2D" : to.is_cpu() ? (non_blocking ? "D2H later" : "D2H") : "D2D", "copy_");
  ++launches;
  on_host(to).copy_(on_host(from));
  return to;
}

Tensor copy_from_and_resize(const Tensor& from, const Tensor& to) {
  to.resize_(from.sizes());
  return copy_from(from, to, false);
}

at::Scalar local_scalar(const Tensor& tensor) {
  report("item", "item");
  return at::native::_local_scalar_dense_cpu(on_host(tensor));
}

const Tensor& resize(const Tensor& tensor, c10::IntArrayRef size, std::optional<c10::MemoryFormat> format) {
  c10::DeviceGuard guard(tensor.device());
  return at::native::resize_(tensor, size, format);
}

Tensor as_strided(const Tensor& tensor, c10::IntArrayRef size, c10::IntArrayRef stride, std::optional<int64_t> offset) {
  return at::cpu::as_strided(tensor, size, stride, offset);
}
Tensor& set_storage(Tensor& tensor, at::Storage storage) { return at::native::set_(tensor, storage); }
Tensor& set_offset(Tensor& tensor, at::Storage storage, int64_t offset, c10::IntArrayRef size, c10::IntArrayRef stride) {
  return at::cpu::set_(tensor, storage, offset, size, stride);
}
Tensor& set_tensor(Tensor& tensor, const Tensor& source) { return at::native::set_tensor_(tensor, source); }
Tensor view(const Tensor& tensor, c10::IntArrayRef size) { return at::native::view(tensor, size); }
Tensor unfold(const Tensor& tensor, int64_t dim, int64_t size, int64_t step) { return at::native::unfold(tensor, dim, size, step); }
Tensor reshape_alias(const Tensor& tensor, c10::IntArrayRef size, c10::IntArrayRef stride) {
  return at::native::_reshape_alias(tensor, size, stride);
}

// As CUDA chooses: the flash kernel for half precision without a mask, else all logits are written out.
int64_t attention_kernel(const Tensor& query, const Tensor&, const Tensor&, const std::optional<Tensor>& mask, double,
                         bool, std::optional<double>, bool) {
  const bool half = query.scalar_type() == at::kHalf || query.scalar_type() == at::kBFloat16;
  const bool flash = half && !mask.has_value() && query.size(-1) <= 256;
  report(flash ? "flash" : "math attention", "scaled_dot_product_attention");
  return flash;
}
}  // namespace

namespace at::native {
REGISTER_PRIVATEUSE1_DISPATCH(_fused_sdp_choice_stub, &attention_kernel);
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", empty);
  m.impl("empty_strided", empty_strided);
  m.impl("as_strided", as_strided);
  m.impl("resize_", resize);
  m.impl("_reshape_alias", reshape_alias);
  m.impl("_copy_from", copy_from);
  m.impl("_copy_from_and_resize", copy_from_and_resize);
  m.impl("_local_scalar_dense", local_scalar);
  m.impl("set_.source_Tensor", set_tensor);
  m.impl("set_.source_Storage", set_storage);
  m.impl("set_.source_Storage_storage_offset", set_offset);
  m.impl("view", view);
  m.impl("unfold", unfold);
}
TORCH_LIBRARY_IMPL(_, PrivateUse1, m) { m.fallback(torch::CppFunction::makeFromBoxedFunction<&on_the_cpu>()); }

extern "C" {
void fake_start(int devices) {
  device_count = devices;
  at::RegisterPrivateUse1HooksInterface(new Hooks());
}
void fake_report_to(void (*callback)(const char*, const char*)) { report_event = callback; }
int64_t fake_launches() { return launches; }
void fake_set_launches(int64_t count) { launches = count; }
int64_t fake_live(int device) { return live[device]; }
int64_t fake_peak(int device) { return peak[device]; }
void fake_reset_peak(int device) { peak[device] = live[device].load(); }
void fake_set_current(int device) { current = device; }
int fake_current() { return current; }
}
