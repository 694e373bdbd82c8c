#include "optimizer/row_optimizer.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "testing/check.h"

namespace sparsefleet {
namespace {

using testing::Expect;
using testing::ExpectEqual;
using testing::ExpectNear;
using testing::Test;

// The published formulas for one weight in double precision, independent of the kernels.
struct Reference {
  OptimizerSpec o;
  double w = 0;
  double a = 0;  // first array of state
  double b = 0;  // second
  double c = 0;  // third
  double t = 0;

  Reference(const OptimizerSpec& spec, double start) : o(spec), w(start) {
    const bool accumulates = o.kind == OptimizerKind::kAdagrad ||
                             o.kind == OptimizerKind::kRowwiseAdagrad ||
                             o.kind == OptimizerKind::kFtrl;
    if (accumulates) a = o.initial_accumulator;
  }

  double Decayed(double g) const {
    if (o.kind == OptimizerKind::kAdamw) return g;  // decoupled: in Step()
    if (NeedsNorms(o.kind)) return g + o.l1 * ((w > 0) - (w < 0));
    return g + o.l2 * w + o.l1 * ((w > 0) - (w < 0));
  }

  // The step of lamb before its norms are known; moments are updated.
  double LambStep(double g) {
    a = o.beta1 * a + (1 - o.beta1) * g;
    b = o.beta2 * b + (1 - o.beta2) * g * g;
    return a / (std::sqrt(b) + o.epsilon) + o.l2 * w;
  }

  // `mean_square` is that of the whole row's gradient, for the row-wise kind.
  void Step(double g, double mean_square) {
    const double lr = o.learning_rate;
    t += 1;
    switch (o.kind) {
      case OptimizerKind::kSgd:
        w -= lr * g;
        break;
      case OptimizerKind::kMomentum:
        a = o.momentum * a + g;
        w -= lr * (o.nesterov ? g + o.momentum * a : a);
        break;
      case OptimizerKind::kAdagrad:
        a += g * g;
        w -= lr * g / (std::sqrt(a) + o.epsilon);
        break;
      case OptimizerKind::kRowwiseAdagrad:
        a += mean_square;
        w -= lr * g / (std::sqrt(a) + o.epsilon);
        break;
      case OptimizerKind::kDecayedAdagrad:
        a = o.decay * a + (1 - o.decay) * g * g;
        w -= lr * g / (std::sqrt(a) + o.epsilon);
        break;
      case OptimizerKind::kRmsprop: {
        a = o.decay * a + (1 - o.decay) * g * g;
        b = o.decay * b + (1 - o.decay) * g;
        const double spread = o.centered ? a - b * b : a;
        c = o.momentum * c + g / (std::sqrt(spread) + o.epsilon);
        w -= lr * c;
        break;
      }
      case OptimizerKind::kFluidRmsprop: {
        a = o.decay * a + (1 - o.decay) * g * g;
        b = o.decay * b + (1 - o.decay) * g;
        const double spread = o.centered ? a - b * b : a;
        c = o.momentum * c + lr * g / std::sqrt(spread + o.epsilon);
        w -= c;
        break;
      }
      case OptimizerKind::kAdadelta:
      case OptimizerKind::kFluidAdadelta: {
        a = o.decay * a + (1 - o.decay) * g * g;
        const double step = std::sqrt((b + o.epsilon) / (a + o.epsilon)) * g;
        b = o.decay * b + (1 - o.decay) * step * step;
        const double after = std::sqrt((b + o.epsilon) / (a + o.epsilon)) * g;
        w -= o.kind == OptimizerKind::kAdadelta ? lr * step : after;
        break;
      }
      case OptimizerKind::kLars:
      case OptimizerKind::kLamb:
        break;  // of a whole row: see kByNorms
      case OptimizerKind::kAdamw:
        w *= 1 - lr * o.l2;
        [[fallthrough]];
      case OptimizerKind::kAdam:
        a = o.beta1 * a + (1 - o.beta1) * g;
        b = o.beta2 * b + (1 - o.beta2) * g * g;
        w -= lr * a / (1 - std::pow(o.beta1, t)) /
             (std::sqrt(b / (1 - std::pow(o.beta2, t))) + o.epsilon);
        break;
      case OptimizerKind::kAdamax:
        a = o.beta1 * a + (1 - o.beta1) * g;
        b = std::max(o.beta2 * b, std::abs(g) + o.epsilon);
        w -= lr / (1 - std::pow(o.beta1, t)) * a / b;
        break;
      case OptimizerKind::kFtrl: {
        const double power = -o.learning_rate_power;
        const double sum = a + g * g;
        b += g - (std::pow(sum, power) - std::pow(a, power)) / lr * w;
        a = sum;
        const double sign = (b > 0) - (b < 0);
        w = std::abs(b) > o.ftrl_l1
                ? (o.ftrl_l1 * sign - b) / (std::pow(sum, power) / lr + 2 * o.ftrl_l2)
                : 0;
        break;
      }
    }
  }
};

struct Case {
  std::string name;
  OptimizerSpec spec;
};

std::vector<Case> AllCases() {
  std::vector<Case> cases;
  const auto add = [&](std::string name, OptimizerKind kind, auto change) {
    OptimizerSpec spec;
    spec.kind = kind;
    spec.learning_rate = 0.01;
    change(spec);
    cases.push_back({std::move(name), spec});
  };
  const auto plain = [](OptimizerSpec&) {};
  add("sgd", OptimizerKind::kSgd, plain);
  add("sgd with decay", OptimizerKind::kSgd, [](auto& s) { s.l1 = 0.01, s.l2 = 0.1; });
  add("momentum", OptimizerKind::kMomentum, [](auto& s) { s.momentum = 0.9; });
  add("nesterov", OptimizerKind::kMomentum, [](auto& s) { s.momentum = 0.9, s.nesterov = true; });
  add("adagrad", OptimizerKind::kAdagrad, plain);
  add("adagrad from 0.1", OptimizerKind::kAdagrad, [](auto& s) { s.initial_accumulator = 0.1; });
  add("row-wise adagrad", OptimizerKind::kRowwiseAdagrad,
      [](auto& s) { s.initial_accumulator = 0.01; });
  add("decayed adagrad", OptimizerKind::kDecayedAdagrad, [](auto& s) { s.epsilon = 1e-6; });
  add("rmsprop", OptimizerKind::kRmsprop, plain);
  add("rmsprop centered", OptimizerKind::kRmsprop, [](auto& s) { s.centered = true; });
  add("rmsprop momentum", OptimizerKind::kRmsprop, [](auto& s) { s.momentum = 0.5; });
  add("rmsprop both", OptimizerKind::kRmsprop,
      [](auto& s) { s.momentum = 0.5, s.centered = true, s.l2 = 0.01; });
  add("adam", OptimizerKind::kAdam, plain);
  add("adam low betas", OptimizerKind::kAdam, [](auto& s) { s.beta1 = 0.2, s.beta2 = 0.5; });
  add("adam with decay", OptimizerKind::kAdam, [](auto& s) { s.l2 = 0.1; });
  add("adamw", OptimizerKind::kAdamw, plain);
  add("adamw with decay", OptimizerKind::kAdamw, [](auto& s) { s.l2 = 0.1; });
  add("adamax", OptimizerKind::kAdamax, plain);
  add("adadelta", OptimizerKind::kAdadelta, [](auto& s) { s.epsilon = 1e-6, s.l2 = 0.01; });
  add("fluid adadelta", OptimizerKind::kFluidAdadelta, [](auto& s) { s.epsilon = 1e-6; });
  add("fluid rmsprop", OptimizerKind::kFluidRmsprop, [](auto& s) { s.epsilon = 1e-6; });
  add("fluid rmsprop both", OptimizerKind::kFluidRmsprop,
      [](auto& s) { s.momentum = 0.5, s.centered = true, s.epsilon = 1e-3, s.l2 = 0.01; });
  add("ftrl", OptimizerKind::kFtrl, [](auto& s) {
    s.initial_accumulator = 0.1, s.learning_rate = 0.1, s.ftrl_l1 = 0.05, s.ftrl_l2 = 0.01;
  });
  add("ftrl power", OptimizerKind::kFtrl, [](auto& s) {
    s.initial_accumulator = 0.1, s.learning_rate = 0.1, s.learning_rate_power = -0.7;
  });
  return cases;
}

// Runs `steps` updates of a row of `dim` and returns weights and state.
std::vector<float> Run(const OptimizerSpec& spec, const RowKernels& kernels, std::size_t dim,
                       int steps, std::uint64_t seed) {
  const RowOptimizer optimizer(spec, kernels);
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> row(dim + optimizer.StateDim(dim));
  for (std::size_t i = 0; i < dim; ++i) row[i] = normal(random);
  optimizer.InitState(row.data() + dim, dim);
  std::vector<float> g(dim);
  std::vector<float> scratch(dim);
  for (int step = 0; step < steps; ++step) {
    for (float& x : g) x = normal(random);
    optimizer.Update(row.data(), row.data() + dim, g.data(), dim, spec.learning_rate,
                     scratch.data());
  }
  return row;
}

const Test kFormulas("every optimizer follows its formula over 200 steps", [] {
  constexpr std::size_t kDim = 13;
  for (const Case& one : AllCases()) {
    const RowOptimizer optimizer(one.spec);
    std::mt19937_64 random(3);
    std::normal_distribution<float> normal;
    std::vector<float> w(kDim);
    for (float& x : w) x = normal(random);
    std::vector<float> state(optimizer.StateDim(kDim));
    optimizer.InitState(state.data(), kDim);
    std::vector<Reference> wanted;
    for (const float x : w) wanted.emplace_back(one.spec, x);
    std::vector<float> g(kDim);
    std::vector<float> scratch(kDim);
    for (int step = 0; step < 200; ++step) {
      double mean_square = 0;
      for (std::size_t i = 0; i < kDim; ++i) {
        g[i] = normal(random);
        const double decayed = wanted[i].Decayed(g[i]);
        mean_square += decayed * decayed / kDim;
      }
      optimizer.Update(w.data(), state.data(), g.data(), kDim, one.spec.learning_rate,
                       scratch.data());
      for (std::size_t i = 0; i < kDim; ++i) wanted[i].Step(wanted[i].Decayed(g[i]), mean_square);
    }
    double worst = 0;
    for (std::size_t i = 0; i < kDim; ++i) {
      worst = std::max(worst, std::abs(w[i] - wanted[i].w) / std::max(std::abs(wanted[i].w), 0.1));
    }
    // Float rounding over 200 steps; a wrong formula is off by orders more.
    Expect(worst < 2e-5, one.name + " is off by " + std::to_string(worst));
  }
});

std::vector<Case> ByNorms() {
  OptimizerSpec lars;
  lars.kind = OptimizerKind::kLars;
  lars.momentum = 0.9;
  lars.decay = 0.01;
  lars.l2 = 0.05;
  lars.l1 = 0.01;
  OptimizerSpec lamb;
  lamb.kind = OptimizerKind::kLamb;
  lamb.learning_rate = 0.01;
  lamb.l2 = 0.05;
  lamb.epsilon = 1e-6;
  return {{"lars", lars}, {"lamb", lamb}};
}

const Test kByNorms("lars and lamb scale a step by the norms of all weights", [] {
  constexpr std::size_t kDim = 301;
  for (const Case& one : ByNorms()) {
    const OptimizerSpec& o = one.spec;
    const RowOptimizer optimizer(o);
    std::mt19937_64 random(3);
    std::normal_distribution<float> normal;
    std::vector<float> w(kDim, 0.0F);  // without a norm at first: the plain rate
    std::vector<float> state(optimizer.StateDim(kDim));
    optimizer.InitState(state.data(), kDim);
    std::vector<Reference> wanted(kDim, Reference(o, 0.0));
    std::vector<float> g(kDim);
    std::vector<float> scratch(kDim);
    for (int step = 0; step < 200; ++step) {
      double weights = 0;
      double steps = 0;
      std::vector<double> moves(kDim);
      for (std::size_t i = 0; i < kDim; ++i) {
        g[i] = normal(random);
        const double decayed = wanted[i].Decayed(g[i]);
        moves[i] = o.kind == OptimizerKind::kLamb ? wanted[i].LambStep(decayed) : decayed;
        weights += wanted[i].w * wanted[i].w;
        steps += moves[i] * moves[i];
      }
      optimizer.Update(w.data(), state.data(), g.data(), kDim, o.learning_rate, scratch.data());
      double lr = o.learning_rate;
      if (weights > 0 && o.kind == OptimizerKind::kLamb) lr *= std::sqrt(weights / steps);
      if (weights > 0 && o.kind == OptimizerKind::kLars) {
        lr *= o.decay * std::sqrt(weights) / (std::sqrt(steps) + o.l2 * std::sqrt(weights));
      }
      for (std::size_t i = 0; i < kDim; ++i) {
        Reference& r = wanted[i];
        if (o.kind == OptimizerKind::kLars) {
          r.a = o.momentum * r.a + lr * (moves[i] + o.l2 * r.w);
          r.w -= r.a;
        } else {
          r.w -= lr * moves[i];
        }
      }
    }
    for (std::size_t i = 0; i < kDim; ++i) {
      ExpectNear(w[i], wanted[i].w, 2e-5 * std::max(std::abs(wanted[i].w), 0.1));
    }
  }
});

std::vector<Case> AllKinds() {
  auto cases = AllCases();
  for (const Case& one : ByNorms()) cases.push_back(one);
  return cases;
}

const Test kSameBits("the instruction sets give the same bits", [] {
  if (!HasAvx2()) return;
  for (const Case& one : AllKinds()) {
    for (const std::size_t dim : {1, 7, 8, 10, 64, 1000}) {
      const auto baseline = Run(one.spec, BaselineKernels(), dim, 50, dim);
#if defined(__x86_64__)
      const auto vectors = Run(one.spec, Avx2Kernels(), dim, 50, dim);
      Expect(std::memcmp(baseline.data(), vectors.data(), baseline.size() * sizeof(float)) == 0,
             one.name + " differs at width " + std::to_string(dim));
#endif
    }
  }
});

const Test kRareRow("a rare row's adam steps are corrected by its own count", [] {
  OptimizerSpec spec;
  spec.kind = OptimizerKind::kAdam;
  spec.learning_rate = 0.1;
  const RowOptimizer optimizer(spec);
  float w = 0;
  std::vector<float> state(optimizer.StateDim(1));
  optimizer.InitState(state.data(), 1);
  const float g = 0.3F;
  optimizer.Update(&w, state.data(), &g, 1, 0.1, nullptr);
  ExpectNear(w, -0.1, 1e-6);  // the first corrected step is the learning rate
  ExpectEqual(state.back(), 1.0F);
  state.back() = 1 << 24;
  optimizer.Update(&w, state.data(), &g, 1, 0.1, nullptr);
  ExpectEqual(state.back(), static_cast<float>(1 << 24));
});

const Test kLongRuns("bias correction continues smoothly beyond the table", [] {
  OptimizerSpec spec;
  spec.kind = OptimizerKind::kAdam;
  spec.beta2 = 0.9999;
  const RowOptimizer optimizer(spec);
  Reference wanted(spec, 0.0);
  std::vector<float> state(3);
  optimizer.InitState(state.data(), 1);
  float w = 0;
  for (int step = 0; step < 5000; ++step) {
    const float g = step % 2 == 0 ? 0.5F : -0.25F;
    optimizer.Update(&w, state.data(), &g, 1, spec.learning_rate, nullptr);
    wanted.Step(g, 0);
  }
  ExpectNear(w, wanted.w, 1e-4 * std::abs(wanted.w));
});

const Test kStaysFinite("zero and tiny gradients leave every weight finite", [] {
  for (const Case& one : AllKinds()) {
    const RowOptimizer optimizer(one.spec);
    for (const float g : {0.0F, 1e-30F, -1e-42F, 1.0F}) {
      std::vector<float> w(5, 0.5F);
      std::vector<float> state(optimizer.StateDim(5));
      std::vector<float> scratch(5);
      optimizer.InitState(state.data(), 5);
      const std::vector<float> gradient(5, g);
      for (int step = 0; step < 100; ++step) {
        optimizer.Update(w.data(), state.data(), gradient.data(), 5, one.spec.learning_rate,
                         scratch.data());
      }
      Expect(optimizer.kernels().all_finite(w.data(), 5), one.name + " is not finite");
    }
  }
});

const Test kFinite("non-finite values are found at any place", [] {
  const auto check = [](const RowKernels& kernels) {
    for (const float bad : {NAN, INFINITY, -INFINITY}) {
      for (std::size_t at = 0; at < 20; ++at) {
        std::vector<float> x(20, 3.4e38F);
        Expect(kernels.all_finite(x.data(), x.size()), "finite values rejected");
        x[at] = bad;
        Expect(!kernels.all_finite(x.data(), x.size()), "missed at " + std::to_string(at));
      }
    }
  };
  check(BaselineKernels());
  check(BestKernels());
});

}  // namespace
}  // namespace sparsefleet

int main(int argc, char** argv) { return sparsefleet::testing::RunTests(argc, argv); }
