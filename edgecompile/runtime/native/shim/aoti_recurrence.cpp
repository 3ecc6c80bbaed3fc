// The recurrent layer of AOTInductor's C ABI, our own operator.
#include <cstring>

#include "base/profile.h"
#include "kernels/gemm/packed_weight.h"
#include "kernels/recurrence.h"
#include "shim/aoti_abi.h"
#include "shim/arguments.h"

namespace {

using ec::fail;
using ec::OwnedTensor;
using ec::Tensor;
using ec::unwrap;

void check_state(const Tensor& state, int64_t batch, int64_t hidden, const char* role) {
  ec::require_float32(state, role);
  if (state.dims != 2 || state.sizes[0] != batch || state.sizes[1] != hidden) {
    fail("%s isn't [%lld, %lld]", role, static_cast<long long>(batch),
         static_cast<long long>(hidden));
  }
}

}  // namespace

AOTITorchError ec_aoti_torch_cpu_ec_recurrence(AtenTensorHandle gates, AtenTensorHandle w_packed,
                                               AtenTensorHandle* bias, AtenTensorHandle h0,
                                               AtenTensorHandle* c0, int64_t kind, int32_t reverse,
                                               AtenTensorHandle* ret0, AtenTensorHandle* ret1,
                                               AtenTensorHandle* ret2) {
  return ec::guarded("aoti_torch_cpu_ec_recurrence", [&] {
    if (kind < 0 || kind > static_cast<int64_t>(ec::Recurrence::kRnnRelu)) {
      fail("kind %lld is unknown", static_cast<long long>(kind));
    }
    ec::RecurrenceSteps steps{};
    steps.kind = static_cast<ec::Recurrence>(kind);
    steps.reverse = reverse != 0;
    const Tensor& x = *unwrap(gates);
    ec::require_float32(x, "gates");
    ec::require_dims(x, 3, "gates");
    ec::require_dims(*unwrap(h0), 2, "h0");
    steps.length = x.sizes[0];
    steps.batch = x.sizes[1];
    steps.hidden = unwrap(h0)->sizes[1];
    const int64_t width = ec::gate_count(steps.kind) * steps.hidden;
    if (x.sizes[2] != width || steps.hidden < 1) {
      fail("gates have %lld columns, a state of %lld needs %lld",
           static_cast<long long>(x.sizes[2]), static_cast<long long>(steps.hidden),
           static_cast<long long>(width));
    }
    check_state(*unwrap(h0), steps.batch, steps.hidden, "h0");
    const Tensor& packed = *unwrap(w_packed);
    if (packed.numel() != ec::packed_count(packed, width, steps.hidden) ||
        !ec::is_contiguous(packed)) {
      fail("w_packed has %lld elements, a packed [%lld, %lld] has %lld",
           static_cast<long long>(packed.numel()), static_cast<long long>(width),
           static_cast<long long>(steps.hidden),
           static_cast<long long>(ec::packed_count(packed, width, steps.hidden)));
    }
    steps.w_packed = &packed;
    OwnedTensor gate_copy, state_copy, bias_copy;
    const Tensor* source = &x;
    if (!ec::is_contiguous(x)) {
      gate_copy.reset(ec::new_contiguous_copy(x));
      source = gate_copy.get();
    }
    steps.gates = source->as<float>();
    if (const Tensor* vector = ec::unwrap_optional(bias); vector != nullptr) {
      ec::require_float32(*vector, "bias");
      if (vector->dims != 1 || vector->sizes[0] != width) {
        fail("bias is no vector of %lld elements", static_cast<long long>(width));
      }
      steps.bias = ec::with_contiguous_last(*vector, &bias_copy).as<float>();
    }
    state_copy.reset(ec::new_contiguous_copy(*unwrap(h0)));
    steps.h0 = state_copy->as<float>();

    const bool has_cell = steps.kind == ec::Recurrence::kLstm;
    const Tensor* first_cell = ec::unwrap_optional(c0);
    if (has_cell != (first_cell != nullptr)) fail("an LSTM has a c0, and nothing else has");
    const int64_t sizes[3] = {steps.length, steps.batch, steps.hidden};
    const int64_t cell_sizes[2] = {has_cell ? steps.batch : 0, steps.hidden};
    OwnedTensor y(ec::new_contiguous(3, sizes, ec::kFloat32));
    OwnedTensor h(ec::new_contiguous(2, sizes + 1, ec::kFloat32));
    OwnedTensor c(ec::new_contiguous(2, cell_sizes, ec::kFloat32));
    if (has_cell) {
      check_state(*first_cell, steps.batch, steps.hidden, "c0");
      ec::copy_elements(*first_cell, c.get());
    }
    steps.y = y->as<float>();
    steps.c = c->as<float>();
    const int64_t rows = steps.length * steps.batch;
    const ec::WorkTimer timer(ec::Work::kLinear,
                              {.n = width,
                               .k = steps.hidden,
                               .dtype = packed.dtype,
                               .flops = 2 * rows * width * steps.hidden,
                               // The weights are read anew for each step, from a cache if they fit.
                               .bytes = packed.numel() * ec::element_size(packed.dtype) +
                                        4 * rows * (width + steps.hidden)});
    ec::run_recurrence(steps);
    const int64_t last = steps.reverse ? 0 : steps.length - 1;
    const float* const end =
        steps.length > 0 ? steps.y + last * steps.batch * steps.hidden : steps.h0;
    std::memcpy(h->as<float>(), end, static_cast<size_t>(steps.batch * steps.hidden) * 4);
    *ret0 = ec::wrap(y.release());
    *ret1 = ec::wrap(h.release());
    *ret2 = ec::wrap(c.release());
  });
}
