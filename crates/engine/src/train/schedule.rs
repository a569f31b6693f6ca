//! The learning rate as a function of the update's number.

use crate::error::{Error, Result};

/// The shape of the decay after warm-up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decay {
    /// None.
    Constant,
    /// Down to the floor in a straight line.
    Linear,
    /// Down to the floor along half a cosine.
    Cosine,
}

/// A learning rate with warm-up and decay.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Schedule {
    /// The highest rate.
    pub peak: f32,
    /// What follows the warm-up.
    pub decay: Decay,
    /// What the decay goes down to.
    pub floor: f32,
    /// Updates over which the rate rises in a straight line; the last of them has the full rate.
    pub warmup: usize,
}

impl Schedule {
    /// The rate of update `step` (from 1) of `steps`.
    pub fn rate(&self, step: usize, steps: usize) -> f32 {
        if step < self.warmup {
            return self.peak * step as f32 / self.warmup as f32;
        }
        // The first update after warm-up has the full rate; the decay would reach the floor one update after the last.
        let done = (step - self.warmup.max(1)) as f64 / (steps + 1).saturating_sub(self.warmup.max(1)).max(1) as f64;
        let share = match self.decay {
            Decay::Constant => 1.0,
            Decay::Linear => 1.0 - done,
            Decay::Cosine => 0.5 * (1.0 + (std::f64::consts::PI * done).cos()),
        };
        let (peak, floor) = (f64::from(self.peak), f64::from(self.floor));
        (floor + (peak - floor) * share) as f32
    }

    /// Checks the numbers.
    ///
    /// # Errors
    /// When the rate can't work.
    pub fn check(&self) -> Result<()> {
        if !(self.peak.is_finite() && self.peak > 0.0) {
            let fault = "a learning rate is a number above 0".into();
            return Err(Error::Option { option: "learning-rate", value: self.peak.to_string(), fault });
        }
        if !(0.0..=self.peak).contains(&self.floor) {
            let fault = format!("it lies between 0 and the learning rate, {}", self.peak);
            return Err(Error::Option { option: "lr-min", value: self.floor.to_string(), fault });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_rises_to_the_peak_and_decays_towards_zero() {
        let schedule = |decay| Schedule { peak: 1.0, decay, floor: 0.0, warmup: 4 };
        let rates: Vec<f32> = (1..=8).map(|step| schedule(Decay::Linear).rate(step, 8)).collect();
        assert_eq!(rates, [0.25, 0.5, 0.75, 1.0, 0.8, 0.6, 0.4, 0.2].map(|x: f32| x));
        assert!((1..=8).all(|step| schedule(Decay::Constant).rate(step, 8) == (step as f32 / 4.0).min(1.0)));
        let cosine = schedule(Decay::Cosine);
        assert!((4..8).all(|step| cosine.rate(step, 8) > cosine.rate(step + 1, 8)) && cosine.rate(8, 8) > 0.0);
        assert_eq!(Schedule { peak: 3.0, decay: Decay::Cosine, floor: 0.0, warmup: 0 }.rate(1, 5), 3.0);
        let floored = Schedule { peak: 1.0, decay: Decay::Linear, floor: 0.5, warmup: 0 };
        assert_eq!((1..=4).map(|step| floored.rate(step, 4)).collect::<Vec<_>>(), [1.0, 0.875, 0.75, 0.625]);
    }
}
