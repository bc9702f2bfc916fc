//! Where the names of lines stand: at their ends, one below the other.

/// The middles of names whose lines end at `ends`, in their order: as near to these as can be, at
/// least `height` apart and between `top` and `bottom`, if there is room for all.
pub(super) fn place(ends: &[i32], height: i32, (top, bottom): (i32, i32)) -> Vec<i32> {
    let mut order: Vec<usize> = (0..ends.len()).collect();
    order.sort_by_key(|at| ends[*at]);
    let mut places: Vec<i32> = order.iter().map(|at| ends[*at]).collect();
    // Downwards each makes room for itself; what has been pushed over the bottom pushes back.
    let mut least = top;
    for place in &mut places {
        *place = (*place).max(least);
        least = *place + height;
    }
    let mut most = bottom;
    for place in places.iter_mut().rev() {
        *place = (*place).min(most);
        most = *place - height;
    }
    let mut placed = vec![0; ends.len()];
    for (at, place) in order.into_iter().zip(places) {
        placed[at] = place;
    }
    placed
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_with_room_stand_where_their_lines_end() {
        assert_eq!(place(&[50, 10, 90], 14, (0, 100)), [50, 10, 90]);
    }

    #[test]
    fn names_of_lines_that_end_together_lie_apart_and_inside() {
        for ends in [[50; 5], [0; 5], [100; 5], [98, 2, 98, 3, 99]] {
            let mut placed = place(&ends, 14, (0, 100));
            placed.sort_unstable();
            assert!(placed.windows(2).all(|pair| pair[1] - pair[0] >= 14), "{placed:?}");
            assert!(placed[0] >= 0 && placed[4] <= 100, "{placed:?}");
        }
    }

    #[test]
    fn names_stand_in_the_order_of_their_lines() {
        let placed = place(&[60, 58, 62], 14, (0, 100));
        assert!(placed[1] < placed[0] && placed[0] < placed[2], "{placed:?}");
    }
}
