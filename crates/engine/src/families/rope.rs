//! Rotation frequencies from a base and its scaling.

use super::config::{RopeSpec, Scaling};

impl RopeSpec {
    /// Radians a position for each of the `d/2` pairs: `theta^(-2i/d)`, stretched as the scaling says.
    pub fn frequencies(&self, d: usize) -> Vec<f64> {
        (0..d / 2)
            .map(|i| {
                let plain = self.theta.powf(-2.0 * i as f64 / d as f64);
                match &self.scaling {
                    Scaling::None => plain,
                    Scaling::Linear(factor) => plain / factor,
                    Scaling::Llama3 { factor, low, high, original } => {
                        let wavelength = 2.0 * std::f64::consts::PI / plain;
                        if wavelength > original / low {
                            plain / factor
                        } else if wavelength < original / high {
                            plain
                        } else {
                            let smooth = (original / wavelength - low) / (high - low);
                            (1.0 - smooth) * plain / factor + smooth * plain
                        }
                    }
                    Scaling::Divisors(divisors) => plain / f64::from(divisors.get(i).copied().unwrap_or(1.0)),
                }
            })
            .collect()
    }
}
